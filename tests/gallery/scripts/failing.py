"""A script that gives up: in its second epoch the loss is no number any more, and it ends with a code of its own."""

import argparse
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        time.sleep(0.007)
        return torch.randn(16) + index % 3, index % 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--diverge-after", type=int, default=35)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Points(), batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    updates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for epoch in range(args.epochs):
        for step, (inputs, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates.step()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {step} loss {loss.item().hex()}", flush=True)
            if updates.last_epoch >= args.diverge_after:
                print("the loss is no number", file=sys.stderr)
                sys.exit(17)


if __name__ == "__main__":
    main()
