"""In the manner of PyTorch's MNIST example: `train` and `test` functions, StepLR, a test loader with larger batches."""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR


class Digits(torch.utils.data.Dataset):
    def __init__(self, path, train):
        arrays = np.load(path)
        part = slice(0, 240) if train else slice(240, None)
        self.images, self.labels = arrays["images"][part], arrays["labels"][part]
        self.train = train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        time.sleep(0.006)
        image = torch.from_numpy(self.images[index]).float().div(255).unsqueeze(0)
        if self.train:
            image = image + 0.1 * torch.randn_like(image)
        return image, int(self.labels[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(200, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return F.log_softmax(self.fc(torch.flatten(self.dropout(x), 1)), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        time.sleep(0.004)
        print(f"epoch {epoch} batch {batch_idx} loss {loss.item().hex()}", flush=True)


def test(model, device, test_loader, epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for number, (data, target) in enumerate(test_loader):
            output = model(data.to(device))
            test_loss += F.nll_loss(output, target.to(device), reduction="sum").item()
            print(f"epoch {epoch} validation {number} loss {test_loss.hex()}", flush=True)
    test_loss /= len(test_loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    train_kwargs = {"batch_size": 8, "num_workers": 2, "shuffle": True}
    test_kwargs = {"batch_size": 16, "num_workers": 1}
    train_loader = torch.utils.data.DataLoader(Digits(f"{args.data}/digits.npz", True), **train_kwargs)
    test_loader = torch.utils.data.DataLoader(Digits(f"{args.data}/digits.npz", False), **test_kwargs)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=0.5)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader, epoch)
        scheduler.step()
    torch.save(model.state_dict(), f"{args.out}/mnist_cnn.pt")


if __name__ == "__main__":
    main()
