"""A large validation set that is looked through before the training begins, and after each epoch; it is shuffled, too."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, count, prep_s):
        self.count, self.prep_s = count, prep_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.prep_s)
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def validate(model, loader, name):
    model.eval()
    with torch.no_grad():
        for number, (inputs, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            print(f"{name} validation {number} loss {loss.item().hex()}", flush=True)
    model.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    val_loader = DataLoader(Points(600, 0.0005), batch_size=40, shuffle=True, num_workers=1)
    train_loader = DataLoader(Points(200, 0.007), batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    validate(model, val_loader, "sanity")
    for epoch in range(args.epochs):
        for step, (inputs, labels) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {step} loss {loss.item().hex()}", flush=True)
        validate(model, val_loader, f"epoch {epoch}")


if __name__ == "__main__":
    main()
