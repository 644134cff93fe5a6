"""On a GPU machine: how fast do page-locked batches come, and how fast does the device copy them?"""

import os
import time
from functools import partial
from typing import Any

import torch

import harness
import stoker
from workloads import SmallSamples, Volumes

WORKERS = max(2, min(12, len(os.sched_getaffinity(0)) - 4))


def busy_rate(loader: Any) -> float:
    """Samples per second in the middle of an epoch."""
    moments, count = [], 0
    for batch in loader:
        count += len(batch[0])
        moments.append((time.perf_counter(), count))
    (start, before), (stop, after) = moments[len(moments) // 4], moments[-1 - len(moments) // 8]
    return (after - before) / (stop - start)


def copy_rate(batch: torch.Tensor) -> float:
    """Bytes per second from a batch to the device."""
    target = torch.empty_like(batch, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        target.copy_(batch, non_blocking=True)
    torch.cuda.synchronize()
    return 20 * batch.nbytes / (time.perf_counter() - began)


def main() -> None:
    count = harness.rounds()
    for name, dataset, size, pin in (
        ("8 MB volumes, pinned", Volumes(1600), 4, True),
        ("3 KB samples", SmallSamples(2_000_000), 256, False),
        ("3 KB samples, pinned", SmallSamples(2_000_000), 256, True),
    ):
        options: dict[str, Any] = {
            "dataset": dataset,
            "batch_size": size,
            "shuffle": True,
            "num_workers": WORKERS,
            "pin_memory": pin,
        }
        contenders = {loader: partial(busy_rate, make(**options)) for loader, make in harness.LOADERS.items()}
        contenders["stoker, seed"] = partial(busy_rate, stoker.DataLoader(**options, seed=1))
        rates = harness.alternate(contenders, min(count, 3))
        harness.report(
            f"{name}, {WORKERS} workers, {torch.cuda.get_device_name()}",
            ratio=rates.ratio("stoker", "torch"),
            seeded_ratio=rates.ratio("stoker, seed", "torch"),
            samples_per_s=rates.medians(),
            gigabytes_per_s=rates.median("stoker") * dataset[0][0].nbytes / 1e9,
        )
    batch = next(iter(stoker.DataLoader(Volumes(64), batch_size=32, num_workers=1, pin_memory=True)))[0]
    speeds = harness.alternate(
        {"slot": partial(copy_rate, batch), "pinned by torch": partial(copy_rate, batch.clone().pin_memory())}, count
    )
    harness.report(
        "copy of a batch to the device", ratio=speeds.ratio("slot", "pinned by torch"), bytes_per_s=speeds.medians()
    )


if __name__ == "__main__":
    main()
