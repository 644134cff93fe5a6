"""Batches are a dataclass of one's own, and the loop changes them in place: normalises, masks, and takes the labels off."""

import argparse
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Example:
    features: torch.Tensor
    label: int


@dataclass
class Batch:
    features: torch.Tensor
    labels: torch.Tensor | None

    def to(self, device):
        return Batch(self.features.to(device), self.labels.to(device))


class Points(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.007)
        return Example(100 + 50 * torch.randn(16) + index % 3, index % 3)


def collate(examples):
    return Batch(torch.stack([e.features for e in examples]), torch.tensor([e.label for e in examples]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Points(200), batch_size=8, shuffle=True, num_workers=2, collate_fn=collate)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for number, batch in enumerate(loader):
            labels, batch.labels = batch.labels, None
            batch.features.sub_(100).div_(50)
            assert batch.features.abs().max() < 10, "this batch was normalised before"
            batch.features.mul_((torch.rand_like(batch.features) > 0.1).float())
            loss = nn.functional.cross_entropy(model(batch.features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {number} loss {loss.item().hex()}", flush=True)
        print(f"epoch {epoch} done", flush=True)


if __name__ == "__main__":
    main()
