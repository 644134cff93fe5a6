"""Cross-validation: for each fold a new model, a new optimizer and new loaders over parts of the same dataset."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler


class Points(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.007)
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


def reset_weights(m):
    if hasattr(m, "reset_parameters"):
        m.reset_parameters()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataset = Points(240)
    indices = torch.randperm(len(dataset)).tolist()
    size = len(dataset) // args.folds
    results = {}
    for fold in range(args.folds):
        test_ids = indices[fold * size : (fold + 1) * size]
        train_ids = [index for index in indices if index not in test_ids]
        trainloader = DataLoader(dataset, batch_size=8, sampler=SubsetRandomSampler(train_ids), num_workers=2)
        testloader = DataLoader(dataset, batch_size=8, sampler=SubsetRandomSampler(test_ids), num_workers=1)
        network = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
        network.apply(reset_weights)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        for epoch in range(args.epochs):
            for i, (inputs, targets) in enumerate(trainloader):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(network(inputs), targets)
                loss.backward()
                optimizer.step()
                time.sleep(0.004)
                print(f"fold {fold} epoch {epoch} batch {i} loss {loss.item().hex()}", flush=True)
        torch.save(network.state_dict(), f"{args.out}/model-fold-{fold}.pth")
        network.eval()
        with torch.no_grad():
            for i, (inputs, targets) in enumerate(testloader):
                loss = nn.functional.cross_entropy(network(inputs), targets)
                print(f"fold {fold} validation {i} loss {loss.item().hex()}", flush=True)
        results[fold] = loss.item()


if __name__ == "__main__":
    main()
