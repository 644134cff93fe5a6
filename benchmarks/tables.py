"""How fast are rows of Parquet as samples, beside PyArrow that reads whole row groups in order and drops them?

10^6 rows of one column of bytes, in row groups of 10,000, from a file in memory. `order` reads all rows in order, 256 at
once, the next ones expected; `rows` is PyArrow that gives each row, too. `random` reads them in random order, with room
for all groups: `first` epoch reads them, `again` has them; `kept` is PyArrow that reads all groups in order and keeps them.
All in a process like a loader's worker.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import harness
from stoker.source.tables import Tables

BATCH, AHEAD = 256, 20_000
GROUP = 10_000


def make(place: Path, rows: int, size: int) -> None:
    """A file of random bytes."""
    numbers = np.random.default_rng(0)
    schema = pa.schema([("content", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(place, schema) as writer:
        for start in range(0, rows, GROUP):
            bounds = pa.py_buffer(np.arange(GROUP + 1, dtype=np.int32) * size)
            content = pa.Array.from_buffers(pa.binary(), GROUP, [None, bounds, pa.py_buffer(numbers.bytes(GROUP * size))])
            labels = pa.array(np.arange(start, start + GROUP))
            writer.write_table(pa.table([content, labels], schema=schema), row_group_size=GROUP)


def plain(place: Path, *, keeps: bool = False, gives: bool = False) -> int:
    """All row groups, one after the other, with PyArrow alone."""
    file, kept, count = pq.ParquetFile(place, memory_map=True), [], 0
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, columns=["content"])
        count += len(group.column(0).to_pylist()) if gives else group.num_rows
        if keeps:
            kept.append(group)
    return count


def read(source: Tables, order: Sequence[int]) -> int:
    """All rows in this order."""
    count = 0
    for start in range(0, len(order), BATCH):
        if start % AHEAD < BATCH:
            source.expect(order[start : start + 2 * AHEAD : 997])
        count += len(source.read(order[start : start + BATCH]))
    return count


def work(place: Path, line: Connection) -> None:
    """A process that measures what it is told, in turn."""
    kept = Tables(place, "content", keep="8GB")
    rows = len(kept)
    while (what := line.recv()) is not None:
        mixed = np.random.default_rng(1).permutation(rows).tolist()
        source = Tables(place, "content", keep="8GB" if what == "first" else "64MB")
        began = time.perf_counter()
        match what:
            case "pyarrow":
                count = plain(place)
            case "rows":
                count = plain(place, gives=True)
            case "kept":
                count = plain(place, keeps=True)
            case "order":
                count = read(source, range(rows))
            case "first":
                count = read(source, mixed)
            case _:
                count = read(kept, mixed)
        line.send(count / (time.perf_counter() - began))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1000)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = Path(folder) / "rows.parquet"
        make(place, options.rows, options.size)
        here, there = spawn.Pipe()
        process = spawn.Process(target=work, args=(place, there), daemon=True)
        process.start()

        def measured(what: str) -> float:
            here.send(what)
            return float(here.recv())

        names = ("pyarrow", "rows", "kept", "order", "first", "again")
        outcome = harness.alternate({name: partial(measured, name) for name in names}, options.rounds)
        here.send(None)
        process.join()
    harness.report(
        "How fast are rows of Parquet as samples, beside PyArrow that reads whole row groups in order?",
        rows_per_s={name: round(value) for name, value in outcome.medians().items()},
        order_beside_pyarrow=round(outcome.ratio("order", "pyarrow"), 3),
        order_beside_rows=round(outcome.ratio("order", "rows"), 3),
        first_takes=round(1 / outcome.ratio("first", "order"), 3),
        first_beside_kept_takes=round(1 / outcome.ratio("first", "kept"), 3),
        again_takes=round(1 / outcome.ratio("again", "order"), 3),
        rounds=options.rounds,
    )


if __name__ == "__main__":
    main()
