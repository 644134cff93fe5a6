"""A module of a package, `python -m project.train`, that keeps files of its own: a log, the best model and the last one."""

import argparse
import csv
import time
from pathlib import Path

import torch
from torch import nn

from .data import loaders


class Files:
    """log.csv has a row for each epoch, best.pt the model with the lowest loss so far, last.pt the newest."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.best = float("inf")
        self.log = self.folder / "log.csv"
        if not self.log.exists():
            self.log.write_text("epoch,loss\n")

    def epoch(self, epoch, loss, model):
        with self.log.open("a", newline="") as file:
            csv.writer(file).writerow([epoch, loss.hex()])
        state = {"epoch": epoch, "loss": loss, "model": model.state_dict()}
        torch.save(state, self.folder / "last.pt")
        if loss < self.best:
            self.best = loss
            torch.save(state, self.folder / "best.pt")


def train_epoch(model, loader, optimizer, epoch):
    model.train()
    for step, batch in enumerate(loader):
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.004)
        print(f"epoch {epoch} batch {step} loss {loss.item().hex()}", flush=True)


@torch.no_grad()
def evaluate(model, loader, epoch):
    model.eval()
    total = 0.0
    for step, batch in enumerate(loader):
        total += nn.functional.cross_entropy(model(batch["x"]), batch["y"]).item()
        print(f"epoch {epoch} validation {step} loss {total.hex()}", flush=True)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    config = parser.parse_args()
    torch.manual_seed(config.seed)
    train_loader, val_loader = loaders(config)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    files = Files(config.out)
    for epoch in range(config.epochs):
        train_epoch(model, train_loader, optimizer, epoch)
        files.epoch(epoch, evaluate(model, val_loader, epoch), model)


if __name__ == "__main__":
    main()
