"""Trains on the files of a folder, on several ranks. Rank 0 prints every loss, to the last digit.

torchrun ... folder_ranks.py FOLDER [--epochs N]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from descent import descend
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Folder(Dataset[Any]):
    def __init__(self, root: str) -> None:
        self.root = root
        self.samples = [(str(path), int(path.parent.name[-1])) for path in sorted(Path(root).rglob("*.bin"))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            content = np.frombuffer(file.read(), np.uint8)
        return torch.tensor([content[part::8].mean() / 255 for part in range(8)], dtype=torch.float32), label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 7)
    dataset = Folder(options.folder)
    sampler: Any = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=1)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            descend(model, loss)
            if torch.distributed.get_rank() == 0:
                print("loss", epoch, loss.item(), flush=True)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
