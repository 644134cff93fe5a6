"""A new DataLoader in every epoch, over another part of the data: as scripts do that show harder samples later."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Points(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(0.007)
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def loader_for(dataset, epoch):
    part = Subset(dataset, [index for index in range(len(dataset)) if index % 6 != epoch % 6])
    return DataLoader(part, batch_size=8, shuffle=True, num_workers=2, drop_last=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataset = Points()
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        loader = loader_for(dataset, epoch)
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            time.sleep(0.004)
            print(f"epoch {epoch} batch {step} loss {loss.item().hex()}", flush=True)
        print(f"epoch {epoch} done", flush=True)


if __name__ == "__main__":
    main()
