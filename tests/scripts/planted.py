"""A training loop whose rates are known: it sleeps for what the device, the decoder and the storage would take.

    planted.py FOLDER [--compute S] [--prep S] [--latency S] [--batch N] [--workers N] [--epochs N] [--kind KIND] [--forget]

Prints samples per second for each epoch, without its first batches. With --latency reading takes so long for each sample,
for every reader. With --forget no file stays in the page cache.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

SKIPPED = 10
"""Batches of an epoch that do not count: workers start, and prepare ahead."""


class InFiles(Dataset[Any]):
    def __init__(self, root: Path, prep_s: float, forget: bool) -> None:
        self.paths = sorted(root.glob("*.bin"))
        self.prep_s = prep_s
        self.forget = forget

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        raw = self.paths[index].read_bytes()
        if self.forget:
            descriptor = os.open(self.paths[index], os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        if self.prep_s:
            time.sleep(self.prep_s)
        return torch.frombuffer(bytearray(raw[:64]), dtype=torch.uint8), index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        while True:
            time.sleep(0.002)
            yield torch.zeros(8)


def slow_source(root: Path, prep_s: float, latency_s: float) -> Any:
    import stoker
    from stoker.testing import Slow

    def prep(raw: memoryview, index: int, rng: Any) -> Any:
        time.sleep(prep_s)
        return torch.frombuffer(bytearray(raw[:64]), dtype=torch.uint8), index

    return stoker.Dataset(Slow(stoker.open_source(root), latency_s), prep)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--compute", type=float, default=0.0)
    parser.add_argument("--prep", type=float, default=0.0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--forget", action="store_true")
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument(
        "--kind",
        choices=["shuffled", "in order", "stream", "none", "failing", "short", "ready", "empty"],
        default="shuffled",
    )
    options = parser.parse_args()
    if options.kind == "none":
        print("no loader here")
        return
    dataset: Any = Stream() if options.kind == "stream" else InFiles(options.root, options.prep, options.forget)
    if options.latency:
        dataset = slow_source(options.root, options.prep, options.latency)
    shuffle = None if options.kind == "stream" else options.kind != "in order"
    loader: Any = DataLoader(dataset, options.batch, shuffle=shuffle, num_workers=options.workers, drop_last=True)
    if options.kind == "ready":  # the loop alone
        loader = [torch.zeros(options.batch, 64)] * 100
    if options.kind == "empty":  # iterated, and left at once
        iter(loader)
        return
    for _ in range(3 if options.kind in ("short", "in order") else options.epochs):
        began, count = time.perf_counter(), 0
        for number, batch in enumerate(loader):
            if number == SKIPPED:
                began, count = time.perf_counter(), 0
            if options.compute:
                time.sleep(options.compute)
            count += options.batch
            if options.kind == "failing" and number == 20:
                raise ValueError("the model diverged")
            if options.kind == "short" and number == 3:
                break
            del batch
        print(f"{count / (time.perf_counter() - began):.1f}", flush=True)


if __name__ == "__main__":
    main()
