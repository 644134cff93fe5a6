"""One process of a training on files, on one rank or several: prints its losses in full, and what was read ahead.

files_ranks.py FOLDER CACHE_DIR CACHE_BYTES listed|computed
"""

import os
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed
from descent import descend
from torch.utils.data import Dataset, DistributedSampler

import stoker


class Files(Dataset[Any]):
    def __init__(self, folder: str) -> None:
        self.samples = [(os.path.join(folder, name), number % 3) for number, name in enumerate(sorted(os.listdir(folder)))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            first = np.frombuffer(file.read(), np.uint8)[:16].astype(np.float32) / 255
        return torch.from_numpy(first) + torch.rand(16), label


class Computed(Files):
    """Lists no paths: it makes them of numbers."""

    def __init__(self, folder: str) -> None:
        self.folder, self.count = folder, len(os.listdir(folder))

    def __len__(self) -> int:
        return self.count

    @property
    def samples(self) -> Any:
        return [(f"{self.folder}/{1 + number % 2}-{number:04}", number % 3) for number in range(self.count)]


def main() -> None:
    folder, cache_dir, cache_bytes, kind = sys.argv[1:]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = torch.nn.Linear(16, 3)
    dataset = Files(folder) if kind == "listed" else Computed(folder)
    sampler: Any = None
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        sampler = DistributedSampler(dataset, seed=3)
    loader = stoker.DataLoader(
        dataset, 8, shuffle=sampler is None, sampler=sampler, num_workers=2, cache=int(cache_bytes), cache_dir=cache_dir
    )
    for epoch in range(2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for step, (inputs, labels) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            descend(model, loss)
            said = f"rank {os.environ.get('RANK', 0)} epoch {epoch} step {step} loss {loss.item().hex()}"
            print(f"{said}\n", end="", flush=True)  # one write: ranks share the output
    print(f"read ahead {loader.stats().read_ahead}", file=sys.stderr, flush=True)
    loader.close()
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
