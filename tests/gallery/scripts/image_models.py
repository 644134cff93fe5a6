"""In the manner of timm: a loader that never restarts its workers, behind one that fetches a batch ahead; a scaler; mixup in place."""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn


class ImageDataset(torch.utils.data.Dataset):
    def __init__(self, root):
        self.samples = [(path, path.parent.name == "busy") for path in sorted(Path(root).rglob("*.png"))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = np.array(Image.open(path).convert("L"))
        time.sleep(0.008)
        return image, int(label)


def fast_collate(batch):
    images = torch.from_numpy(np.stack([image for image, _ in batch]))
    return images, torch.tensor([label for _, label in batch])


class MultiEpochsDataLoader(torch.utils.data.DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = _RepeatSampler(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class PrefetchLoader:
    """Bytes become floats, and one batch is always ahead of the loop."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        input = target = None
        first = True
        for next_input, next_target in self.loader:
            next_input = next_input.float().sub_(127.0).div_(60.0)
            if not first:
                yield input, target
            first = False
            input, target = next_input, next_target
        yield input, target

    def __len__(self):
        return len(self.loader)

    @property
    def sampler(self):
        return self.loader.sampler

    @property
    def dataset(self):
        return self.loader.dataset


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)  # the first steps overflow, and are skipped

    def __call__(self, loss, optimizer, parameters, need_update=True):
        self._scaler.scale(loss).backward()
        if need_update:
            self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()


def mixup(x, target, lam=0.8):
    flipped = x.flip(0).mul_(1.0 - lam)
    x.mul_(lam).add_(flipped)
    one_hot = nn.functional.one_hot(target, 2).float()
    return x, one_hot * lam + one_hot.flip(0) * (1 - lam)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, loss_scaler, lr_scheduler):
    model.train()
    last_idx = len(loader) - 1
    num_updates = epoch * len(loader)
    for batch_idx, (input, target) in enumerate(loader):
        last_batch = batch_idx == last_idx
        input, target = mixup(input, target)
        loss = loss_fn(model(input.flatten(1)), target)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, model.parameters())
        num_updates += 1
        time.sleep(0.004)
        print(f"epoch {epoch} batch {batch_idx}{' (last)' if last_batch else ''} loss {loss.item().hex()}", flush=True)
    lr_scheduler.step()


def validate(epoch, model, loader, loss_fn):
    model.eval()
    total = 0.0
    with torch.inference_mode():
        for batch_idx, (input, target) in enumerate(loader):
            total += loss_fn(model(input.flatten(1)), target).item()
            print(f"epoch {epoch} validation {batch_idx} loss {total.hex()}", flush=True)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, evaluate = ImageDataset(f"{args.data}/pictures/train"), ImageDataset(f"{args.data}/pictures/val")
    sampler = torch.utils.data.RandomSampler(train)
    loader_train = PrefetchLoader(
        MultiEpochsDataLoader(
            train,
            batch_size=8,
            sampler=sampler,
            num_workers=2,
            collate_fn=fast_collate,
            drop_last=True,
            persistent_workers=True,
        )
    )
    loader_eval = PrefetchLoader(
        torch.utils.data.DataLoader(evaluate, batch_size=8, num_workers=1, collate_fn=fast_collate, persistent_workers=True)
    )
    model = nn.Sequential(nn.Linear(576, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    loss_scaler = NativeScaler()
    loss_fn = nn.CrossEntropyLoss()
    best = None
    for epoch in range(args.epochs):
        train_one_epoch(epoch, model, loader_train, optimizer, loss_fn, loss_scaler, lr_scheduler)
        loss = validate(epoch, model, loader_eval, loss_fn)
        with open(f"{args.out}/summary.csv", "a", newline="") as file:
            csv.writer(file).writerow([epoch, loss.hex()])
        if best is None or loss < best:
            best = loss
            torch.save({"epoch": epoch, "loss": loss, "model": model.state_dict()}, f"{args.out}/model_best.pth.tar")


if __name__ == "__main__":
    main()
