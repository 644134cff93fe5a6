"""Many small samples in memory, where the loader is all there is: `python small_samples.py --epochs 3 --workers 2`."""

import argparse
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Small(Dataset):
    def __init__(self, count):
        self.images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index % 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Small(options.count), batch_size=256, shuffle=True, num_workers=options.workers)
    for epoch in range(options.epochs):
        began, total = time.perf_counter(), 0
        for images, labels in loader:
            total += int(images[0, 0, 0, 0]) * int(labels[0])
        print(f"epoch {epoch} total {total} seconds {time.perf_counter() - began:.3f}", flush=True)


if __name__ == "__main__":
    main()
