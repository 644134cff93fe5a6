"""By how much do checkpoints at the chosen interval slow a training on the CPU? States from 1 MB to 1 GB, two budgets.

Blocks with checkpoints and blocks of as many iterations without alternate in one process. A block begins with a snapshot
and is one interval long, or several that fill some seconds, so it holds all that checkpoints cost: the snapshot, the wait
before the next update, and the process that writes beside the loop. The profile before the first checkpoint is not counted.
"""

import argparse
import math
import statistics
import tempfile
import time
from typing import Any

import torch

import harness
import stoker

SIZES = {"1 MB": (2, 256, 256), "30 MB": (2, 1382, 64), "1 GB": (2, 8192, 8)}
"""Layers, width and batch: weights and momentum together have about that size."""
_BLOCK_S = 3.0
"""Shorter ones would say more about the machine than about checkpoints."""
_STUDENT_95 = {11: 2.201, 15: 2.131, 19: 2.093, 23: 2.069}


class Training:
    """Some layers, and a loss that pulls on them."""

    def __init__(self, layers: int, width: int, batch: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, momentum=0.9)
        self.batch = torch.randn(batch, width)

    def iterate(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()


def settle(training: Training, checkpointer: Any, checkpoints: int = 6) -> None:
    """Iterate until the interval has been corrected a few times."""
    while checkpointer.stats().checkpoints < checkpoints:
        training.iterate()
        checkpointer.step()


def block_s(training: Training, checkpointer: Any, iterations: int) -> float:
    """Seconds of so many iterations, of which the first ends with a snapshot, and others when one is due."""
    checkpointer._retry = True
    began = time.perf_counter()
    for _ in range(iterations):
        training.iterate()
        checkpointer.step()
    return time.perf_counter() - began


def plain_s(training: Training, iterations: int) -> float:
    """Seconds of so many iterations alone."""
    began = time.perf_counter()
    for _ in range(iterations):
        training.iterate()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12, help="how many alternations (default and least: 12)")
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--budgets", nargs="*", type=float, default=[0.05, 0.035])
    options = parser.parse_args()
    for size in options.sizes:
        for budget in options.budgets:
            training = Training(*SIZES[size])
            parts: Any = {"model": training.model, "optimizer": training.optimizer}
            with (
                tempfile.TemporaryDirectory(dir=".") as place,
                stoker.Checkpointer(place, overhead=budget, **parts) as ours,
            ):
                settle(training, ours)
                pairs: list[tuple[float, float, int]] = []
                while len(pairs) < max(12, options.rounds):
                    iterations = ours.stats().interval
                    iterations *= max(1, round(_BLOCK_S / (iterations * ours._pace.iteration_s)))
                    with_s = block_s(training, ours, iterations)
                    ours._wait_saved()  # should a block be shorter than its persist
                    pairs.append((with_s, plain_s(training, iterations), iterations))
                stats = ours.stats()
            ratios = [with_s / without_s - 1 for with_s, without_s, _ in pairs]
            half = _STUDENT_95.get(len(ratios) - 1, 2.0) * statistics.stdev(ratios) / math.sqrt(len(ratios))
            harness.report(
                f"overhead of checkpoints of {size} with a budget of {budget:.1%}",
                ratio=1 + statistics.mean(ratios),
                overhead=statistics.mean(ratios),
                plus_minus=half,
                median=statistics.median(ratios),
                intervals=[min(pair[2] for pair in pairs), max(pair[2] for pair in pairs)],
                iteration_s=sum(pair[1] for pair in pairs) / sum(pair[2] for pair in pairs),
                persist_s=stats.persist_s,
                stall_s_each=stats.stall_s / stats.checkpoints,
            )


if __name__ == "__main__":
    main()
