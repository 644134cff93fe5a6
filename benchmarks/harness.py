"""What all benchmarks share: contenders take turns, medians are compared, and contents are checked in the same run."""

import argparse
import hashlib
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.data

import stoker

LOADERS: dict[str, Any] = {"torch": torch.utils.data.DataLoader, "stoker": stoker.DataLoader}


def rounds() -> int:
    """How often each contender runs, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default: 5)")
    return int(parser.parse_args().rounds)


class Outcome:
    """What the contenders of one run achieved, round by round."""

    def __init__(self, values: dict[str, list[float]]) -> None:
        self.values = values

    def median(self, name: str) -> float:
        """The median of one contender."""
        return statistics.median(self.values[name])

    def ratio(self, name: str, other: str) -> float:
        """How one compares with another: the median over rounds, in each of which both ran within seconds."""
        return statistics.median(left / right for left, right in zip(self.values[name], self.values[other], strict=True))

    def medians(self, *names: str) -> dict[str, float]:
        """The medians of some contenders, or of all."""
        return {name: self.median(name) for name in names or self.values}


def alternate(contenders: Mapping[str, Callable[[], float]], count: int) -> Outcome:
    """Run all contenders in turn, `count` times. One round before that warms everything up."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count + 1):
        for name, run in contenders.items():
            value = run()
            if number:
                values[name].append(value)
    return Outcome(values)


def epoch_rate(loader: Any) -> float:
    """Samples per second over one whole epoch, from `iter()` until all workers are gone."""
    count = 0
    began = time.perf_counter()
    for batch in loader:
        count += len(batch[0])
    return count / (time.perf_counter() - began)


def digest(loader: Any) -> str:
    """A fingerprint of all batches of an epoch, in order."""
    total = hashlib.sha256()
    torch.manual_seed(0)
    random.seed(0)
    for batch in loader:
        for leaf in batch:
            total.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            total.update(leaf.numpy().tobytes())
    return total.hexdigest()


def same_batches(**options: Any) -> bool:
    """Whether torch's loader and ours give the same bytes."""
    return len({digest(kind(**options)) for kind in LOADERS.values()}) == 1


def report(question: str, **values: Any) -> None:
    """Print the answer as one line of JSON."""
    versions = f"python {platform.python_version()}, torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores"
    print(json.dumps({"question": question, **_short(values), "host": versions}), flush=True)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
