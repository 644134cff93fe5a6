"""How many samples per second arrive from two workers, against torch's loader and against the limit?"""

import time
from functools import partial
from typing import Any

import harness
from workloads import WORKLOADS

WORKERS = 2


def plain_loop_rate(dataset: Any, count: int) -> float:
    """One core doing nothing but the user's own code."""
    began = time.perf_counter()
    for index in range(count):
        dataset[index]
    return count / (time.perf_counter() - began)


def main() -> None:
    count = harness.rounds()
    for name, (kind, batch) in WORKLOADS.items():
        dataset = kind()
        options = {"dataset": dataset, "batch_size": batch, "shuffle": True, "num_workers": WORKERS}
        contenders: dict[str, Any] = {
            loader: partial(harness.epoch_rate, make(**options)) for loader, make in harness.LOADERS.items()
        }
        contenders["plain loop"] = partial(plain_loop_rate, dataset, min(len(dataset), 4096) // 4)
        rates = harness.alternate(contenders, count)
        harness.report(
            f"throughput of {name}",
            ratio=rates["stoker"] / rates["torch"],
            samples_per_s={name: rates[name] for name in harness.LOADERS},
            of_limit=rates["stoker"] / (WORKERS * rates["plain loop"]),
            same=harness.same_batches(**options),
        )


if __name__ == "__main__":
    main()
