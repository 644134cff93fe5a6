"""How long from `iter()` to the first batch?"""

import time
from functools import partial
from typing import Any

import harness
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
    options = {"dataset": Jpegs(1024), "batch_size": 64, "shuffle": True, "num_workers": 2}
    times = harness.alternate(
        {name: partial(first_batch_s, make(**options)) for name, make in harness.LOADERS.items()}, 2 * count
    )
    harness.report("time to the first jpeg batch", ratio=times.ratio("torch", "stoker"), seconds=times.medians())


if __name__ == "__main__":
    main()
