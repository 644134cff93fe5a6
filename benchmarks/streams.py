"""What states cost: a stream of 3 KB items with a small state after every batch, the same without, and torchdata's loader.

All run in turns in one process, so that they meet the same machine. `--batch`, `--workers`, `--seconds` for one turn.
With `--state 100MB` the question is another: how long `state_dict()` takes where each worker has such a state, and how much
shared memory there is at most. With `--checkpoint`, too: how much longer than others the iterations of a script under
`stoker run --checkpoint` are in which one is taken.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

import stoker
from stoker.units import parse_bytes

ITEM = torch.zeros(768)
"""3 KB."""


class Stream(IterableDataset[Any]):
    """Items from memory, without an end."""

    place = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.place += 1
            yield ITEM


class StatefulStream(Stream):
    """The same, which tells where it is."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "shard": 7, "epoch": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class HeavyStream(Stream):
    """One with a state of so many bytes, which changes with every item."""

    def __init__(self, size: int) -> None:
        self._buffer = torch.zeros(size, dtype=torch.uint8)

    def state_dict(self) -> dict[str, Any]:
        self._buffer[0] = self.place % 256
        return {"buffer": self._buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._buffer = state["buffer"]


def heavy(size: int, options: dict[str, Any]) -> dict[str, Any]:
    """Ask for the state after each of some batches. Its time, and the growth of all shared memory of this host."""
    before, most, took = _shared(), 0, []
    iterator = iter(loader := stoker.DataLoader(HeavyStream(size), **options))
    for _ in range(20):
        next(iterator)
        began = time.perf_counter()
        loader.state_dict()
        took.append(time.perf_counter() - began)
        most = max(most, _shared() - before)
    loader.close()
    return {"state_dict_s": {"median": statistics.median(took), "longest": max(took)}, "shared_mb": most // 1_000_000}


SCRIPT = """
import json, sys, time, torch
sys.path.insert(0, sys.argv[1])
from streams import HeavyStream
from torchdata.stateful_dataloader import StatefulDataLoader
model = torch.nn.Linear(768, 1)
optimizer, took = torch.optim.SGD(model.parameters(), lr=0.0), []
loader = iter(StatefulDataLoader(HeavyStream(int(sys.argv[2])), batch_size=32, num_workers=int(sys.argv[3])))
for step in range(80):
    began = time.perf_counter()
    batch = next(loader)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.2)
    took.append(time.perf_counter() - began)
took = sorted(took[2:])
print(json.dumps({"median": took[len(took) // 2], "longest": took[-4:]}))
"""


def checkpointed(size: int, workers: int) -> dict[str, Any]:
    """What a checkpoint adds to an iteration of 0.2 s: the longest four of 78, seven of which take one."""
    with tempfile.TemporaryDirectory() as folder:
        (script := Path(folder, "train.py")).write_text(SCRIPT)
        run = [sys.executable, "-m", "stoker", "run", "--checkpoint", f"{folder}/checkpoints", "--checkpoint-every", "10"]
        command = [*run, str(script), str(Path(__file__).parent), str(size), str(workers)]
        ran = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {"checkpoint_adds_s": [round(longest - ran["median"], 3) for longest in ran["longest"]]}


def _shared() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Shmem:"))


def rate(loader: Any, seconds: float) -> float:
    """Items in a second, once the workers run."""
    iterator = iter(loader)
    for _ in range(20):
        next(iterator)
    began, items = time.perf_counter(), 0
    while (ran := time.perf_counter() - began) < seconds:
        for _ in range(50):
            items += len(next(iterator))
    return items / ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--state", type=parse_bytes, metavar="SIZE", help="of each worker's state")
    parser.add_argument("--checkpoint", action="store_true", help="with --state: under `stoker run --checkpoint`")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"batch_size": args.batch, "num_workers": args.workers}
    if args.state is not None:
        found = checkpointed(args.state, args.workers) if args.checkpoint else heavy(args.state, options)
        print(json.dumps({"question": "large states of streams", "bytes": args.state, **found}))
        return
    from torchdata.stateful_dataloader import StatefulDataLoader

    makes: dict[str, Any] = {
        "without": lambda: stoker.DataLoader(Stream(), **options),
        "with": lambda: stoker.DataLoader(StatefulStream(), **options),
        "torchdata": lambda: StatefulDataLoader(StatefulStream(), **options),
    }
    rates: dict[str, list[float]] = {name: [] for name in makes}
    for _ in range(args.turns):
        for name, make in makes.items():
            rates[name].append(rate(make(), args.seconds))
    middle = {name: sorted(found)[len(found) // 2] for name, found in rates.items()}
    with open("/proc/loadavg") as file:
        load = file.read().split()[0]
    answer = {
        "question": "states of streams",
        "items_per_s": {name: round(value) for name, value in middle.items()},
        "with_against_without": round(middle["with"] / middle["without"], 3),
        "against_torchdata": round(middle["with"] / middle["torchdata"], 2),
        "load": load,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
