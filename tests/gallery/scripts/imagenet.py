"""In the manner of PyTorch's ImageNet example: meters, --start-epoch, and a checkpoint that is copied when it is the best."""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    def __init__(self, root, augment):
        self.classes = sorted(path.name for path in Path(root).iterdir())
        self.samples = [
            (str(path), label) for label, name in enumerate(self.classes) for path in sorted(Path(root, name).iterdir())
        ]
        self.augment = augment

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = torch.from_numpy(np.load(file))
        if self.augment:
            top, left = torch.randint(0, 160, (2,)).tolist()
            image = image[top : top + 160, left : left + 160]
        return image[:160:10, :160:10].float().div(255).flatten(), label


class AverageMeter:
    def __init__(self, name):
        self.name, self.value, self.sum, self.count = name, 0, 0, 0

    def update(self, value, n=1):
        self.value, self.sum, self.count = value, self.sum + value * n, self.count + n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def train(train_loader, model, criterion, optimizer, epoch):
    losses, data_time = AverageMeter("Loss"), AverageMeter("Data")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.004)
        end = time.time()
        print(f"epoch {epoch} batch {i} of {len(train_loader)} loss {losses.value.hex()}", flush=True)


def validate(val_loader, model, criterion, epoch):
    losses = AverageMeter("Loss")
    model.eval()
    with torch.no_grad():
        for i, (images, target) in enumerate(val_loader):
            losses.update(criterion(model(images), target).item(), images.size(0))
            print(f"epoch {epoch} validation {i} loss {losses.avg.hex()}", flush=True)
    return losses.avg


def save_checkpoint(state, is_best, out):
    torch.save(state, f"{out}/checkpoint.pth.tar")
    if is_best:
        shutil.copyfile(f"{out}/checkpoint.pth.tar", f"{out}/model_best.pth.tar")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--start-epoch", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_dataset = Folder(f"{args.data}/large/train", True)
    val_dataset = Folder(f"{args.data}/large/val", False)
    train_loader = DataLoader(train_dataset, batch_size=8, shuffle=True, num_workers=2, pin_memory=True, sampler=None)
    val_loader = DataLoader(val_dataset, batch_size=8, shuffle=False, num_workers=1, pin_memory=True)
    model = nn.Sequential(nn.Linear(256, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    best = float("inf")
    for epoch in range(args.start_epoch, args.epochs):
        train(train_loader, model, criterion, optimizer, epoch)
        loss = validate(val_loader, model, criterion, epoch)
        scheduler.step()
        is_best = loss < best
        best = min(loss, best)
        state = {"epoch": epoch + 1, "model": model.state_dict(), "loss": loss, "optimizer": optimizer.state_dict()}
        save_checkpoint(state, is_best, args.out)


if __name__ == "__main__":
    main()
