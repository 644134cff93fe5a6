"""Two processes on CPUs: `torchrun --standalone --nproc-per-node 2 ddp.py`."""

import argparse
import os

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    dataset = Noisy()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=options.workers)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank} epoch {epoch} batch {number} loss {loss.item():.17g}\n", end="", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
