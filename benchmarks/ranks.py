"""Do ranks that share their workers gain, where one of them has dearer samples, and lose nothing where all are alike?

    python benchmarks/ranks.py [--ranks 2] [--workers 1] [--dear 4] [--steps 60] [--turns 3] [--kind work]

Ranks meet after every step, as at an all-reduce. One JSON line: steps per second with `ranks="shared"` over those with a
loader each, in turns; and for both the part of iterations that were imbalanced: the slowest rank's wait for data and own
compute was longer than the fastest's by more than a tenth of the training time.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler

import stoker


class Spun(Dataset[Any]):
    """Samples that keep a core busy for a time; those of rank 0 for longer (DistributedSampler without shuffling)."""

    def __init__(self, length: int, ranks: int, cost_s: float, dear: float) -> None:
        self.length, self.ranks, self.cost_s, self.dear = length, ranks, cost_s, dear

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        cost = self.cost_s * (self.dear if index % self.ranks == 0 else 1.0)
        until = time.thread_time() + cost
        while time.thread_time() < until:
            pass
        return torch.full((64,), float(index))


class Small(Dataset[Any]):
    """Samples of 3 KB that cost next to nothing."""

    def __init__(self, length: int) -> None:
        self.rows = np.arange(length, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return np.full(768, self.rows[index], np.float32)


def rank(options: Any, number: int, mode: str, meet: Any, results: Any) -> None:
    torch.set_num_threads(1)
    if options.kind == "small":
        dataset: Any = Small(options.steps * options.batch * options.ranks)
    else:
        dataset = Spun(
            options.steps * options.batch * options.ranks, options.ranks, options.cost / options.batch, options.dear
        )
    sampler: Any = DistributedSampler(dataset, options.ranks, number, shuffle=False)
    loader = stoker.DataLoader(
        dataset,
        options.batch,
        sampler=sampler,
        num_workers=options.workers,
        seed=1,
        ranks=None if mode == "own" else mode,
        persistent_workers=True,
    )
    waits, seen = [], []
    for epoch in range(2):  # the first starts everything
        meet.wait()
        began = time.perf_counter()
        asked = began
        for batch in loader:
            waits.append(time.perf_counter() - asked)
            if options.kind == "work":
                seen.append(batch[:, 0])
            if options.compute:
                time.sleep(options.compute)
            if options.kind == "work":
                meet.wait()
            asked = time.perf_counter()
        meet.wait()
        took = time.perf_counter() - began
        if epoch == 0:
            waits.clear()
    sums = float(torch.cat(seen).sum()) if seen else 0.0
    results.put((number, took, waits, loader.stats().helped, sums))
    meet.wait()
    loader.close()


def measure(options: Any, mode: str) -> dict[str, Any]:
    os.environ["MASTER_PORT"] = str(os.getpid())
    meet = multiprocessing.Barrier(options.ranks)
    results: Any = multiprocessing.Queue()
    ranks = [multiprocessing.Process(target=rank, args=(options, n, mode, meet, results)) for n in range(options.ranks)]
    for one in ranks:
        one.start()
    found = sorted(results.get(timeout=300) for _ in ranks)
    for one in ranks:
        one.join()
    took = max(one[1] for one in found)
    steps = len(found[0][2])
    spread = [max(w) - min(w) for w in zip(*(one[2] for one in found), strict=True)]
    late = sum(one > 0.1 * took / steps for one in spread) / steps
    return {
        "steps_per_s": steps / took,
        "imbalanced": late,
        "helped": [one[3] for one in found],
        "sums": [one[4] for one in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cost", type=float, default=0.01, help="seconds to prepare a batch")
    parser.add_argument("--dear", type=float, default=4.0, help="how many times as much a batch of rank 0 costs")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of each step that need no core")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--kind", choices=("work", "small"), default="work")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"own": [], "shared": []}
    for _ in range(options.turns):
        for mode in found:
            found[mode].append(measure(options, mode))
    medians = {mode: statistics.median(one["steps_per_s"] for one in each) for mode, each in found.items()}
    print(
        json.dumps(
            {
                "question": "ranks",
                "ratio": round(medians["shared"] / medians["own"], 3),
                **{f"steps_per_s_{mode}": round(value, 1) for mode, value in medians.items()},
                **{
                    f"imbalanced_{m}": round(statistics.median(one["imbalanced"] for one in e), 3) for m, e in found.items()
                },
                "helped": found["shared"][-1]["helped"],
                "equal": found["own"][-1]["sums"] == found["shared"][-1]["sums"],
            }
        )
    )


if __name__ == "__main__":
    main()
