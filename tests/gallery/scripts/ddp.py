"""Two ranks by torchrun, DistributedSampler and set_epoch; the first rank writes the files."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Points(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


class Trainer:
    def __init__(self, model, train_data, optimizer, rank, out):
        self.model = DistributedDataParallel(model)
        self.train_data, self.optimizer, self.rank, self.out = train_data, optimizer, rank, out

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for number, (source, targets) in enumerate(self.train_data):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            time.sleep(0.004)
            if self.rank == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item().hex()}", flush=True)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                torch.save(self.model.module.state_dict(), f"{self.out}/snapshot.pt")
                print(f"epoch {epoch} done", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(args.seed + rank)
    dataset = Points()
    loader = DataLoader(dataset, batch_size=8, shuffle=False, sampler=DistributedSampler(dataset), num_workers=1)
    model = nn.Linear(16, 3)
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.05), rank, args.out).train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
