"""By how much do checkpoints at the chosen interval slow a training on the CPU? States from 1 MB to 1 GB, two budgets.

Blocks with a checkpoint and blocks of as many iterations without alternate in one process. A block begins with a snapshot
and lasts well beyond the end of its writing, so it holds all that a checkpoint costs: the snapshot, the wait before the
next update, and the process that writes beside the loop. The difference, divided by the time of a whole interval, is the
overhead; for short intervals a block has several checkpoints. The profile before the first one is not counted.
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
_SETTLING = 6
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


def block_s(training: Training, checkpointer: Any, iterations: int, every: int) -> float:
    """Seconds of so many iterations, with a snapshot at the end of the first, and after each interval."""
    began = time.perf_counter()
    for number in range(iterations):
        training.iterate()
        checkpointer._timetable.retry = number % every == 0
        checkpointer.step()
    return time.perf_counter() - began


def plain_s(training: Training, iterations: int) -> float:
    """Seconds of so many iterations alone."""
    began = time.perf_counter()
    for _ in range(iterations):
        training.iterate()
    return time.perf_counter() - began


def measure(training: Training, checkpointer: Any, rounds: int) -> dict[str, Any]:
    """The overhead, as mean and half of its 95 % interval, with what it comes from."""
    while checkpointer.stats().checkpoints < 2:  # the profile
        training.iterate()
        checkpointer.step()
    rows: list[tuple[float, float]] = []
    for number in range(_SETTLING + rounds):
        every, iteration_s = checkpointer.stats().interval, checkpointer._pace.iteration_s
        window = math.ceil(2 * checkpointer.stats().persist_s / iteration_s) + 4
        checkpoints = max(1, round(_BLOCK_S / (every * iteration_s)))
        iterations = checkpoints * every if every <= window or checkpoints > 1 else window
        with_s = block_s(training, checkpointer, iterations, every)
        checkpointer._wait_saved()
        without_s = plain_s(training, iterations)
        if number >= _SETTLING:
            rows.append(((with_s - without_s) / (checkpoints * every * without_s / iterations), without_s / iterations))
    overheads = [overhead for overhead, _ in rows]
    half = _STUDENT_95.get(len(rows) - 1, 2.0) * statistics.stdev(overheads) / math.sqrt(len(rows))
    return {
        "ratio": 1 + statistics.mean(overheads),
        "overhead": statistics.mean(overheads),
        "plus_minus": half,
        "median": statistics.median(overheads),
        "iteration_s": statistics.median(iteration_s for _, iteration_s in rows),
    }


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
                outcome = measure(training, ours, max(12, options.rounds))
                stats = ours.stats()
            harness.report(
                f"overhead of checkpoints of {size} with a budget of {budget:.1%}",
                **outcome,
                interval=stats.interval,
                persist_s=stats.persist_s,
                stall_s_each=stats.stall_s / stats.checkpoints,
            )


if __name__ == "__main__":
    main()
