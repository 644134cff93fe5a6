"""Gradients of four batches for one update, and of what is left at the end of an epoch: `batch_idx + 1 == len(loader)`."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.007)
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Points(224), batch_size=8, shuffle=True, num_workers=2)
    val_loader = DataLoader(Points(32), batch_size=8)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        model.train()
        for batch_idx, (inputs, labels) in enumerate(train_loader):
            assert batch_idx < len(train_loader)
            loss = nn.functional.cross_entropy(model(inputs), labels) / args.accumulate
            loss.backward()
            if (batch_idx + 1) % args.accumulate == 0 or batch_idx + 1 == len(train_loader):
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {batch_idx} loss {loss.item().hex()}", flush=True)
        model.eval()
        with torch.no_grad():
            for number, (inputs, labels) in enumerate(val_loader):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                print(f"epoch {epoch} validation {number} loss {loss.item().hex()}", flush=True)


if __name__ == "__main__":
    main()
