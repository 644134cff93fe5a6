"""In the manner of Lightning Fabric's examples: a plain loop over loaders that Fabric has set up."""

import argparse
import time
import warnings

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    fabric = Fabric(accelerator="cpu", devices=1)
    seed_everything(args.seed, verbose=False)
    train_loader = DataLoader(Points(200), batch_size=8, shuffle=True, num_workers=2)
    test_loader = DataLoader(Points(48), batch_size=16)
    train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    model, optimizer = fabric.setup(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        model.train()
        for batch_idx, (data, target) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), target)
            fabric.backward(loss)
            optimizer.step()
            time.sleep(0.03)
            print(f"epoch {epoch} batch {batch_idx} loss {loss.item().hex()}", flush=True)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            for batch_idx, (data, target) in enumerate(test_loader):
                loss = nn.functional.cross_entropy(model(data), target)
                print(f"epoch {epoch} validation {batch_idx} loss {loss.item().hex()}", flush=True)
    fabric.save(f"{args.out}/fabric.ckpt", {"model": model})


if __name__ == "__main__":
    main()
