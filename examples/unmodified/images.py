"""Classify the pictures of a folder: a plain training loop with random crops and flips.

python images.py FOLDER/pictures --epochs 3 --workers 2
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Pictures(Dataset):
    def __init__(self, folder):
        self.classes = sorted(path.name for path in Path(folder).iterdir())
        self.paths = sorted(Path(folder).glob("*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        picture = Image.open(self.paths[index]).convert("RGB")
        left, top = random.randint(0, picture.width - 224), random.randint(0, picture.height - 224)
        pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)))
        if torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
        return picture, self.classes.index(self.paths[index].parent.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)

    pictures = Pictures(options.folder)
    training, validation = random_split(pictures, [len(pictures) - 32, 32])
    train_loader = DataLoader(training, options.batch, shuffle=True, num_workers=options.workers)
    valid_loader = DataLoader(validation, options.batch, num_workers=options.workers)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)

    for epoch in range(options.epochs):
        model.train()
        for number, (pixels, labels) in enumerate(train_loader):
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {number} loss {loss.item():.17g}", flush=True)
        schedule.step()
        model.eval()
        with torch.no_grad():
            correct = sum((model(x).argmax(1) == y).sum().item() for x, y in valid_loader)
        print(f"epoch {epoch} correct {correct} of {len(validation)}", flush=True)


if __name__ == "__main__":
    main()
