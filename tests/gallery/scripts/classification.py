"""In the manner of torchvision's classification reference: a logger round the loader, a warm-up, an average of the weights."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data.dataloader import default_collate


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, root, augment):
        self.samples = [
            (path, label) for label, name in enumerate(["busy", "calm"]) for path in sorted(Path(root, name).iterdir())
        ]
        self.augment = augment

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = np.array(Image.open(path).convert("L"))
        time.sleep(0.006)
        if self.augment and torch.rand(1) < 0.5:
            image = image[:, ::-1].copy()
        return torch.from_numpy(image).float().div(255).flatten(), label


def mixup(batch):
    images, labels = default_collate(batch)
    labels = nn.functional.one_hot(labels, 2).float()
    share = random.betavariate(0.4, 0.4)
    return images.mul(share).add_(images.roll(1, 0), alpha=1 - share), labels.mul(share).add_(
        labels.roll(1, 0), alpha=1 - share
    )


class MetricLogger:
    def log_every(self, iterable, header):
        i, start, space = 0, time.time(), f"{len(str(len(iterable)))}d"
        for obj in iterable:
            yield obj
            eta = (time.time() - start) / (i + 1) * (len(iterable) - i)
            print(f"{header} [{i:{space}}/{len(iterable)}]", "late" if eta < 0 else "in time", flush=True)
            i += 1


def train_one_epoch(model, criterion, optimizer, data_loader, epoch, model_ema):
    model.train()
    for i, (image, target) in enumerate(MetricLogger().log_every(data_loader, f"Epoch: [{epoch}]")):
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model_ema.update_parameters(model)
        time.sleep(0.004)
        print(f"epoch {epoch} batch {i} loss {loss.item().hex()}", flush=True)


def evaluate(model, criterion, data_loader, epoch, name):
    model.eval()
    with torch.inference_mode():
        for i, (image, target) in enumerate(data_loader):
            loss = criterion(model(image), target)
            print(f"epoch {epoch} validation {name} {i} loss {loss.item().hex()}", flush=True)


def main(args):
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    dataset, dataset_test = (
        ImageFolder(f"{args.data}/pictures/train", True),
        ImageFolder(f"{args.data}/pictures/val", False),
    )
    train_sampler = torch.utils.data.RandomSampler(dataset)
    test_sampler = torch.utils.data.SequentialSampler(dataset_test)
    data_loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, sampler=train_sampler, num_workers=2, pin_memory=True, collate_fn=mixup
    )
    data_loader_test = torch.utils.data.DataLoader(dataset_test, batch_size=8, sampler=test_sampler, num_workers=2)
    model = nn.Sequential(nn.Linear(576, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    model_ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    main_lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, main_lr], milestones=[1])
    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, criterion, optimizer, data_loader, epoch, model_ema)
        lr_scheduler.step()
        evaluate(model, criterion, data_loader_test, epoch, "plain")
        evaluate(model_ema, criterion, data_loader_test, epoch, "ema")
        checkpoint = {"model": model.state_dict(), "model_ema": model_ema.state_dict(), "epoch": epoch}
        if epoch < 5:
            torch.save(checkpoint, Path(args.out) / f"model_{epoch}.pth")
        torch.save(checkpoint, Path(args.out) / "checkpoint.pth")


def get_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--start-epoch", type=int, default=0)
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main(get_args())
