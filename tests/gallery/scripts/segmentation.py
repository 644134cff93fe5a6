"""In the manner of torchvision's segmentation reference: collation that pads, a learning rate for each iteration."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn


class Masks(torch.utils.data.Dataset):
    def __init__(self, root, part):
        pictures = {path.stem: path for path in Path(root, "pictures/train").rglob("*.png")}
        self.pairs = [(pictures[mask.stem], mask) for mask in sorted(Path(root, "masks").iterdir())][part]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        picture, mask = (torch.from_numpy(np.array(Image.open(path).convert("L"))) for path in self.pairs[index])
        size = int(torch.randint(16, 25, (1,)))
        return picture[:size, :size].float().div(255), mask[:size, :size].long()


def cat_list(images, fill_value=0):
    height, width = (max(image.shape[side] for image in images) for side in (0, 1))
    padded = images[0].new_full((len(images), height, width), fill_value)
    for image, row in zip(images, padded, strict=True):
        row[: image.shape[0], : image.shape[1]].copy_(image)
    return padded


def collate_fn(batch):
    images, targets = zip(*batch, strict=True)
    return cat_list(images), cat_list(targets, fill_value=255)


def criterion(output, target):
    return nn.functional.cross_entropy(output, target, ignore_index=255)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataset, dataset_test = Masks(args.data, slice(0, 192)), Masks(args.data, slice(192, None))
    data_loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=8,
        sampler=torch.utils.data.RandomSampler(dataset),
        num_workers=2,
        collate_fn=collate_fn,
        drop_last=True,
    )
    data_loader_test = torch.utils.data.DataLoader(dataset_test, batch_size=1, num_workers=1, collate_fn=collate_fn)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    iterations = len(data_loader) * max(args.epochs, 5)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / iterations) ** 0.9)
    for epoch in range(args.epochs):
        model.train()
        for i, (image, target) in enumerate(data_loader):
            loss = criterion(model(image.unsqueeze(1)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            time.sleep(0.03)
            print(f"epoch {epoch} batch {i} loss {loss.item().hex()}", flush=True)
        model.eval()
        with torch.inference_mode():
            for i, (image, target) in enumerate(data_loader_test):
                loss = criterion(model(image.unsqueeze(1)), target)
                print(f"epoch {epoch} validation {i} loss {loss.item().hex()}", flush=True)
        torch.save({"model": model.state_dict(), "epoch": epoch}, f"{args.out}/checkpoint.pth")


if __name__ == "__main__":
    main()
