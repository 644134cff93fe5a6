"""What does a batch cost beyond the user's code, and what does the meter cost of that?"""

import time
from functools import partial
from typing import Any

from torch.utils.data import Dataset

import harness
from stoker.meter import Meter, now


class Nothing(Dataset[int]):
    """Samples that cost nothing."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> int:
        return index


def seconds_per_batch(loader: Any) -> float:
    iterator = iter(loader)
    next(iterator)
    began = time.perf_counter()
    count = sum(1 for _ in iterator)
    return (time.perf_counter() - began) / count


def meter_seconds() -> float:
    """What the meter does for one batch."""
    meter, times = Meter(), 100_000
    began = time.perf_counter()
    for _ in range(times):
        start, asked = now(), now()
        meter.wait_s += now() - start
        meter.prep_s += max(0.0, start - max(asked, start))
        meter.batches += 1
        meter.samples += 1
    return (time.perf_counter() - began) / times


def main() -> None:
    count = harness.rounds()
    for workers in (0, 2):
        times = harness.alternate(
            {
                name: partial(seconds_per_batch, make(Nothing(), num_workers=workers))
                for name, make in harness.LOADERS.items()
            },
            count,
        )
        harness.report(
            f"overhead of a batch of one number, {workers} workers",
            ratio=times.ratio("torch", "stoker"),
            microseconds={name: 1e6 * value for name, value in times.medians().items()},
            meter_share=meter_seconds() / times.median("stoker"),
        )


if __name__ == "__main__":
    main()
