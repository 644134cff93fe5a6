"""Pictures of a folder that every host has: `torchrun --nnodes 2 ... hosts_ddp.py FOLDER`, see docs/peers.md."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    def __init__(self, root):
        classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.samples = [(str(path), classes.index(path.parent.name)) for path in sorted(Path(root).glob("*/*.jpg"))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            picture = Image.open(file).convert("RGB").resize((32, 32))
        return torch.from_numpy(np.array(picture)).float().flatten() / 255, label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    dataset = Pictures(options.folder)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(nn.Linear(3 * 32 * 32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        took = time.perf_counter() - began
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}, {took:.2f} s\n", end="", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
