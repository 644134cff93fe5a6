"""Train ResNet-18 on JPEG files, in mixed precision where there is a GPU.

python resnet18.py FOLDER --batch 256 --workers 14 --epochs 3

FOLDER has a folder for each class. Prints samples per second for each epoch.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.short = nn.Identity()
        if stride != 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet18(classes):
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, width = [], 64
    for number, outside in enumerate([64, 64, 128, 128, 256, 256, 512, 512]):
        blocks.append(Block(width, outside, 2 if number in (2, 4, 6) else 1))
        width = outside
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Pictures(Dataset):
    def __init__(self, folder):
        self.classes = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
        self.samples = [(str(path), self.classes.index(path.parent.name)) for path in sorted(Path(folder).glob("*/*.jpg"))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        picture = Image.open(path).convert("RGB")
        left, top = random.randint(0, picture.width - 224), random.randint(0, picture.height - 224)
        pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures = Pictures(options.folder)
    loader = DataLoader(
        pictures, options.batch, shuffle=True, num_workers=options.workers, pin_memory=device.type == "cuda", drop_last=True
    )
    model = resnet18(len(pictures.classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for epoch in range(options.epochs):
        began, count = time.perf_counter(), 0
        for number, (pixels, labels) in enumerate(loader):
            if number == len(loader) // 2:  # by now workers have started, and what they had prepared meanwhile is used up
                began, count = time.perf_counter(), 0
            pixels, labels = pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                scaled = pixels.float().div(255).to(memory_format=torch.channels_last)
                loss = nn.functional.cross_entropy(model(scaled), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += len(labels)
        if device.type == "cuda":
            torch.cuda.synchronize()
        print(f"epoch {epoch}: {count / (time.perf_counter() - began):.1f} samples/s, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
