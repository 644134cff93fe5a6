"""How much memory does a worker take, beyond what it shares, and how much does the training process hold for batches?"""

from functools import partial
from typing import Any

import psutil

import harness
from workloads import Jpegs, SmallSamples


def worker_bytes(loader: Any) -> float:
    """What the workers own alone, on average, near the end of an epoch. Shared pages count in part (PSS)."""
    iterator = iter(loader)
    for _ in range(len(loader) - 4):
        next(iterator)
    sizes: list[int] = [psutil.Process(worker.pid).memory_full_info().pss for worker in iterator._workers]
    del iterator
    return sum(sizes) / len(sizes)


def main() -> None:
    count = harness.rounds()
    for name, dataset, batch in (("small samples", SmallSamples(50_000), 256), ("jpeg", Jpegs(1024), 64)):
        options = {"dataset": dataset, "batch_size": batch, "shuffle": True, "num_workers": 2}
        sizes = harness.alternate(
            {loader: partial(worker_bytes, make(**options)) for loader, make in harness.LOADERS.items()}, max(2, count // 2)
        )
        harness.report(f"memory of a worker, {name}", ratio=sizes.ratio("stoker", "torch"), bytes=sizes.medians())


if __name__ == "__main__":
    main()
