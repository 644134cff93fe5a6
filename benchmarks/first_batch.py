"""How long from `iter()` to the first batch? With a seed the first batch is split over all workers."""

import time
from functools import partial
from typing import Any

import harness
import stoker
from workloads import Jpegs


def first_batch_s(loader: Any) -> float:
    """Seconds to the first batch; the workers are gone afterwards."""
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    taken = time.perf_counter() - began
    del iterator
    return taken


def main() -> None:
    count = harness.rounds()
    options: dict[str, Any] = {"dataset": Jpegs(1024), "batch_size": 64, "shuffle": True, "num_workers": 2}
    loaders = {name: make(**options) for name, make in harness.LOADERS.items()}
    loaders["stoker, seed"] = stoker.DataLoader(**options, seed=1)
    times = harness.alternate({name: partial(first_batch_s, loader) for name, loader in loaders.items()}, 3 * count)
    harness.report(
        "time to the first jpeg batch",
        ratio=times.ratio("torch", "stoker"),
        seeded_ratio=times.ratio("torch", "stoker, seed"),
        seconds=times.medians(),
    )


if __name__ == "__main__":
    main()
