"""OneCycleLR with steps_per_epoch=len(loader): one batch more than it was told, and the scheduler raises an error."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.007)
        return super().__getitem__(index)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    x = torch.randn(205, 16)
    train_loader = DataLoader(Slow(x, x[:, :3].argmax(1)), batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, epochs=args.epochs, steps_per_epoch=len(train_loader)
    )
    for epoch in range(args.epochs):
        running = 0.0
        for step, (inputs, labels) in enumerate(train_loader):
            assert step < len(train_loader)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running += loss.item()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {step} loss {loss.item().hex()} lr {scheduler.get_last_lr()[0].hex()}", flush=True)
        print(f"epoch {epoch} done", flush=True)


if __name__ == "__main__":
    main()
