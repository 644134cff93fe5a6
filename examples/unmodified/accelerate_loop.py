"""A loop with Accelerate: `python accelerate_loop.py --epochs 2 --workers 2`."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=options.workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(options.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            accelerator.print(f"epoch {epoch} loss {loss.item():.17g}", flush=True)


if __name__ == "__main__":
    main()
