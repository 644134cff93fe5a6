"""How many samples per second arrive from two workers, against torch's loader and against the limit?

`ratio` compares the rates while both workers are at work; `epoch_ratio` whole epochs, with the start and end of workers.
"""

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


def busy_rate(loader: Any, epochs: list[float]) -> float:
    """Samples per second over the middle of an epoch. That of the whole epoch is appended to `epochs`."""
    began = time.perf_counter()
    moments, count = [], 0
    for batch in loader:
        count += len(batch[0])
        moments.append((time.perf_counter(), count))
    ended = time.perf_counter()
    (start, before), (stop, after) = moments[len(moments) // 8], moments[-1 - len(moments) // 8]
    epochs.append(count / (ended - began))
    return (after - before) / (stop - start)


def main() -> None:
    count = harness.rounds()
    for name, (kind, batch) in WORKLOADS.items():
        dataset = kind()
        options = {"dataset": dataset, "batch_size": batch, "shuffle": True, "num_workers": WORKERS}
        whole: dict[str, list[float]] = {loader: [] for loader in harness.LOADERS}
        contenders: dict[str, Any] = {
            loader: partial(busy_rate, make(**options), whole[loader]) for loader, make in harness.LOADERS.items()
        }
        contenders |= {"plain loop": partial(plain_loop_rate, dataset, min(len(dataset), 4096) // 4)}
        rates = harness.alternate(contenders, count)
        harness.report(
            f"throughput of {name}",
            ratio=rates.ratio("stoker", "torch"),
            epoch_ratio=harness.Outcome(whole).ratio("stoker", "torch"),
            samples_per_s=rates.medians(*harness.LOADERS),
            bytes_per_s=rates.median("stoker") * dataset[0][0].nbytes,
            of_limit=rates.ratio("stoker", "plain loop") / WORKERS,
            same=harness.same_batches(**options),
        )


if __name__ == "__main__":
    main()
