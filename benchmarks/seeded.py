"""With a seed: what does it cost, and how soon does a resumed loader go on?"""

import random
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import harness
import stoker
from throughput import busy_rate
from workloads import SmallSamples


class DrawingSamples(SmallSamples):
    """3 KB images that draw from all three generators."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        torch.rand(1), np.random.rand(), random.random()
        return super().__getitem__(index)


class Nothing(Dataset[int]):
    """Samples that cost nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def compare_with_torch(name: str, dataset: Any, count: int) -> None:
    options: dict[str, Any] = {"dataset": dataset, "batch_size": 256, "shuffle": True, "num_workers": 2}
    loaders = {"torch": torch.utils.data.DataLoader(**options), "stoker": stoker.DataLoader(**options, seed=1)}
    rates = harness.alternate({key: partial(busy_rate, loader, []) for key, loader in loaders.items()}, count)
    harness.report(name, ratio=rates.ratio("stoker", "torch"), samples_per_s=rates.medians())


def first_batch_s(samples: int, resume: bool) -> float:
    loader = stoker.DataLoader(Nothing(samples), batch_size=64, shuffle=True, seed=1)
    if resume:
        state = loader.state_dict()
        state["samples"] = state["samples"] + samples // 128 * 64
        state["_num_yielded"] = samples // 128
        loader.load_state_dict(state)
    began = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - began


def state_s() -> float:
    loader = stoker.DataLoader(Nothing(10**6), batch_size=64, shuffle=True, seed=1)
    iterator = iter(loader)
    next(iterator)
    began = time.perf_counter()
    for _ in range(1000):
        loader.state_dict()
    return (time.perf_counter() - began) / 1000


def main() -> None:
    count = harness.rounds()
    compare_with_torch("seed, 3 KB samples that never draw", SmallSamples(), count)
    compare_with_torch("seed, 3 KB samples that draw from three generators", DrawingSamples(50_000), count)
    for samples in (10**4, 10**5, 10**6, 10**7):
        contenders = {
            "from the start": partial(first_batch_s, samples, False),
            "resumed": partial(first_batch_s, samples, True),
        }
        times = harness.alternate(contenders, 3)
        harness.report(
            f"seconds to the first batch of {samples:,} samples, resumed in the middle",
            ratio=times.ratio("from the start", "resumed"),
            seconds=times.medians(),
            state_microseconds=1e6 * state_s(),
        )


if __name__ == "__main__":
    main()
