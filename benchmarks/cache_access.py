"""What does it cost to keep an item in the cache, and to read it again? On tmpfs, against one file for each item.

Microseconds of processor time for an item, by the bare store and by `Cache.fetch`, one by one and 32 together as workers
ask for them; `ratio` is of a file against `fetch` of 32. Then a cache of a million items, from processes that have not seen
it before: opening it is from nothing to the first item, and `ratio` there is against a cache of one item. `first` are the
first reads of all, which meet pages that this process has not touched, `epoch` is one pass over all items in random
order, `later` the reads after that. Last, several processes that read at once: `ratio` is against one process, `cpu_us`
what a read costs each.
"""

import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import harness
from stoker.cache.cached import Cache
from stoker.cache.store import Store
from stoker.memory import Bytes

SIZES = {2_000: 4_000, 100_000: 800}
"""Bytes of an item, and how many there are."""
TOGETHER = 32
MANY = 1_000_000
MANY_SIZE = 2_000
READS = 50_000
ROOM = 1 << 40


def key(number: int) -> bytes:
    """As long as a file's, with a version, and as far from the next one."""
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "little") + bytes(16)


class Items:
    """A request for some items, all of which have the same bytes."""

    def __init__(self, numbers: Sequence[int], payload: bytes) -> None:
        self.keys = [key(number) for number in numbers]
        self.payload = payload

    def sizes(self, positions: list[int]) -> Sequence[int]:
        return [len(self.payload)] * len(positions)

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        return [self.payload] * len(positions)

    def is_settled(self, position: int) -> bool:
        return True

    def kept(self, positions: list[int]) -> None:
        """Nobody has another copy."""


@contextmanager
def fresh() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def each_us(act: Callable[[Any], Any], numbers: Sequence[Any], step: int = 1) -> float:
    """Microseconds of processor time for an item, if one call does `step` of them. Nothing here waits for anything."""
    began = time.process_time()
    for number in numbers[::step]:
        act(number)
    return (time.process_time() - began) / len(numbers) * 1e6


class Files:
    """One file for each item."""

    def __init__(self, folder: Path, payload: bytes) -> None:
        self.folder = str(folder)
        self.payload = payload

    def put(self, number: int) -> None:
        with open(f"{self.folder}/{number}", "wb", buffering=0) as file:
            file.write(self.payload)

    def get(self, number: int) -> bytes:
        with open(f"{self.folder}/{number}", "rb", buffering=0) as file:
            return file.readall()


def access(size: int, count: int, rounds: int) -> None:
    """Put and get costs of items of one size."""
    payload = os.urandom(size)
    order = random.Random(0).sample(range(count), count)

    def putting(way: str) -> float:
        with fresh() as folder:
            if way == "file":
                return each_us(Files(folder, payload).put, order)
            step = TOGETHER if "together" in way else 1
            if way.startswith("store"):
                store = Store(folder)
                took = each_us(
                    lambda at: store.put([(key(at + i), payload) for i in range(step)], ROOM), range(count), step
                )
                store.close()
                return took
            cache = Cache("items", 1 << 31, folder)
            took = each_us(lambda at: cache.fetch(Items(range(at, at + step), payload)), range(count), step)
            cache.close()
            return took

    ways = ["file", "store", "store, 32 together", "fetch", "fetch, 32 together"]
    outcome = harness.alternate({way: partial(putting, way) for way in ways}, rounds)
    report(f"microseconds to put an item of {size:,} bytes", outcome)
    with fresh() as folder, fresh() as beside:
        files = Files(beside, payload)
        cache = Cache("items", 1 << 31, folder)
        for number in range(count):
            files.put(number)
        for start in range(0, count, TOGETHER):
            cache.fetch(Items(range(start, start + TOGETHER), payload))
        store, requests = opened_store(cache), {number: Items([number], payload) for number in range(count)}
        keys = {number: key(number) for number in range(count)}
        whole = {at: Items(order[at : at + TOGETHER], payload) for at in range(0, count, TOGETHER)}
        reading = {
            "file": partial(each_us, files.get, order),
            "store": partial(each_us, lambda number: store.get(keys[number]), order),
            "fetch": partial(each_us, lambda number: cache.fetch(requests[number]), order),
            "fetch, 32 together": partial(each_us, lambda at: cache.fetch(whole[at]), range(count), TOGETHER),
        }
        report(f"microseconds to get an item of {size:,} bytes", harness.alternate(reading, rounds))
        cache.close()


def opened_store(cache: Cache) -> Store:
    """The store of a cache in this process."""
    opened = cache._open()
    assert opened is not None
    return opened.store


def report(question: str, outcome: harness.Outcome) -> None:
    best = "fetch, 32 together"
    harness.report(question, ratio=outcome.ratio("file", best), us=outcome.medians())


def look(folder: str, name: str, count: int) -> None:
    """In a process of its own: how long until a cache is open, and what reads cost."""
    keys = [key(number) for number in range(count)]
    random.Random(os.getpid()).shuffle(keys)
    began = time.perf_counter()
    cache = Cache(name, 1 << 32, folder)
    first = cache.get(keys[0])
    open_s = time.perf_counter() - began
    assert first is not None and len(first) == MANY_SIZE
    store = opened_store(cache)
    reads = {
        "first": each_us(store.get, keys[:READS]),
        "epoch": each_us(store.get, keys),
        "later": each_us(store.get, keys[:READS]),
        "later, by the cache": each_us(cache.get, keys[:READS]),
    }
    found = cache.stats()
    assert found is not None and found.items == count
    print(json.dumps({"open_s": open_s, "us": reads, "occupied": found.occupied_bytes / found.payload_bytes}))


def million(rounds: int) -> None:
    """A store of a million items, seen by fresh processes."""
    payload = os.urandom(MANY_SIZE)
    with fresh() as folder:
        for name, count in (("one", 1), ("many", MANY)):
            cache = Cache(name, 1 << 32, folder)
            store = opened_store(cache)
            began = time.perf_counter()
            for start in range(0, count, 1000):
                store.put([(key(number), payload) for number in range(start, min(count, start + 1000))], ROOM)
            filled_s = time.perf_counter() - began
            cache.close()
        seen: dict[str, list[dict[str, Any]]] = {"one": [], "many": []}
        for _ in range(rounds):
            for name, count in (("one", 1), ("many", MANY)):
                command = [sys.executable, __file__, "--look", str(folder), name, str(count)]
                seen[name].append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout))
        opening = {name: statistics.median(each["open_s"] for each in rows) for name, rows in seen.items()}
        reading = {way: statistics.median(each["us"][way] for each in seen["many"]) for way in seen["many"][0]["us"]}
        harness.report(
            f"seconds to open a cache of {MANY:,} items of {MANY_SIZE:,} bytes, from a fresh process",
            ratio=opening["one"] / opening["many"],
            seconds=opening,
            seconds_to_fill=filled_s,
            occupied=seen["many"][0]["occupied"],
        )
        with fresh() as beside:
            files = Files(beside, payload)
            for number in range(READS):
                files.put(number)
            order = random.Random(0).sample(range(READS), READS)
            of_file = statistics.median(each_us(files.get, order) for _ in range(rounds))
        harness.report(
            f"microseconds to read one of {MANY:,} items, from a fresh process",
            ratio=of_file / reading["epoch"],
            us=reading | {"file": of_file},
        )
        readers(max(folder.rglob("data.mdb"), key=lambda path: path.stat().st_blocks).parent, rounds)


def readers(found: Path, rounds: int) -> None:
    """Several processes at once."""
    cpu_us: dict[str, list[float]] = {"1": [], "2": [], "4": []}

    def together(count: int) -> float:
        context = multiprocessing.get_context("fork")
        barrier, totals = context.Barrier(count), context.SimpleQueue()
        processes = [context.Process(target=read_on, args=(found, barrier, totals, number)) for number in range(count)]
        for process in processes:
            process.start()
        found_rates = [totals.get() for _ in processes]
        for process in processes:
            process.join()
        cpu_us[str(count)].extend(spent for _, spent in found_rates)
        return float(sum(rate for rate, _ in found_rates))

    outcome = harness.alternate({str(count): partial(together, count) for count in (1, 2, 4)}, rounds)
    for count in ("2", "4"):
        harness.report(
            f"reads per second of {MANY_SIZE:,} bytes, {count} processes at once",
            ratio=outcome.ratio(count, "1"),
            reads=outcome.medians(),
            cpu_us={each: statistics.median(spent) for each, spent in cpu_us.items()},
        )


def read_on(folder: Path, barrier: Any, totals: Any, seed: int) -> None:
    rng = random.Random(seed)
    keys = [key(rng.randrange(MANY)) for _ in range(READS)]
    store = Store(folder)
    for one in keys:
        store.get(one)
    barrier.wait()
    began = time.perf_counter()
    cpu_us = each_us(store.get, keys * 4)
    totals.put((4 * len(keys) / (time.perf_counter() - began), cpu_us))
    store.close()


def main() -> None:
    if sys.argv[1:2] == ["--look"]:
        look(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    rounds = harness.rounds()
    for size, count in SIZES.items():
        access(size, count, rounds)
    million(rounds)


if __name__ == "__main__":
    main()
