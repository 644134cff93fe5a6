"""In the manner of torchvision's detection reference: a batch sampler of one's own, lists of pictures, a warm-up by steps."""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn


class Boxes(torch.utils.data.Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).rglob("*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = torch.from_numpy(np.array(Image.open(self.paths[index]).convert("L"))).float().div(255)
        time.sleep(0.006)
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
        boxes = torch.rand(int(torch.randint(1, 4, (1,))), 4)
        return image, {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64), "image_id": index}


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(576, 16)
        self.boxes, self.classes = nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, images, targets):
        features = torch.relu(self.body(torch.stack([image.flatten() for image in images])))
        boxes, classes = self.boxes(features), self.classes(features)
        return {
            "loss_boxes": sum((boxes[i] - t["boxes"]).abs().mean() for i, t in enumerate(targets)) / len(targets),
            "loss_classes": sum(nn.functional.cross_entropy(classes[i], t["labels"][0]) for i, t in enumerate(targets)),
        }


def train_one_epoch(model, optimizer, data_loader, epoch):
    model.train()
    lr_scheduler = None
    if epoch == 0:
        warmup_iters = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 1000, total_iters=warmup_iters)
    for i, (images, targets) in enumerate(data_loader):
        images = [image.to("cpu") for image in images]
        targets = [{k: v.to("cpu") if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        losses = sum(loss for loss in model(images, targets).values())
        if not math.isfinite(losses.item()):
            print(f"Loss is {losses.item()}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        time.sleep(0.003)
        print(f"epoch {epoch} batch {i} loss {losses.item().hex()}", flush=True)


@torch.inference_mode()
def evaluate(model, data_loader, epoch):
    model.eval()
    for i, (images, targets) in enumerate(data_loader):
        losses = sum(loss for loss in model(images, targets).values())
        print(f"epoch {epoch} validation {i} loss {losses.item().hex()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataset, dataset_test = Boxes(f"{args.data}/pictures/train"), Boxes(f"{args.data}/pictures/val")
    train_sampler = torch.utils.data.RandomSampler(dataset)
    train_batch_sampler = torch.utils.data.BatchSampler(train_sampler, 8, drop_last=True)
    data_loader = torch.utils.data.DataLoader(
        dataset, batch_sampler=train_batch_sampler, num_workers=2, collate_fn=collate_fn
    )
    data_loader_test = torch.utils.data.DataLoader(
        dataset_test, batch_size=1, sampler=torch.utils.data.SequentialSampler(dataset_test), collate_fn=collate_fn
    )
    model = Detector()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.1)
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, data_loader, epoch)
        lr_scheduler.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, f"{args.out}/model_{epoch % 3}.pth")
        evaluate(model, data_loader_test, epoch)


if __name__ == "__main__":
    main()
