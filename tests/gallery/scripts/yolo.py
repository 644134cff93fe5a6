"""In the manner of YOLOv5: an endless loader under a progress bar, accumulation, a moving average, last.pt and best.pt."""

import argparse
import copy
import math
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, dataloader
from tqdm import tqdm


class LoadImagesAndLabels(Dataset):
    def __init__(self, root, augment):
        self.im_files = [str(path) for path in sorted(Path(root).rglob("*.png"))]
        self.augment = augment

    def __len__(self):
        return len(self.im_files)

    def __getitem__(self, index):
        image = np.array(Image.open(self.im_files[index]).convert("L"))
        time.sleep(0.008)
        if self.augment and random.random() < 0.5:
            image = np.fliplr(image)
        return torch.from_numpy(np.ascontiguousarray(image)), torch.rand(1, 4), self.im_files[index]

    @staticmethod
    def collate_fn(batch):
        images, labels, paths = zip(*batch, strict=True)
        return torch.stack(images, 0), torch.cat(labels, 0), paths


class InfiniteDataLoader(dataloader.DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
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


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def create_dataloader(root, batch_size, augment, workers):
    dataset = LoadImagesAndLabels(root, augment)
    generator = torch.Generator()
    generator.manual_seed(6148914691236517205)
    loader = InfiniteDataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=augment,
        num_workers=min(os.cpu_count(), workers),
        collate_fn=LoadImagesAndLabels.collate_fn,
        worker_init_fn=seed_worker,
        generator=generator,
    )
    return loader, dataset


class ModelEMA:
    def __init__(self, model, decay=0.9):
        self.ema = copy.deepcopy(model).eval()
        self.decay = decay

    def update(self, model):
        d = self.decay
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= d
                v += (1 - d) * model.state_dict()[k].detach()


def train(opt):
    torch.manual_seed(opt.seed), random.seed(opt.seed), np.random.seed(opt.seed)
    last, best = f"{opt.out}/last.pt", f"{opt.out}/best.pt"
    train_loader, _ = create_dataloader(f"{opt.data}/pictures/train", 8, True, 2)
    val_loader, _ = create_dataloader(f"{opt.data}/pictures/val", 16, False, 1)
    model = nn.Sequential(nn.Linear(576, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 4))
    nb = len(train_loader)
    nbs = 8
    accumulate = max(round(nbs / 8), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda x: max(0.1, 1 - x / 10))
    ema = ModelEMA(model)
    scheduler.last_epoch = -1
    last_opt_step, best_fitness = -1, math.inf
    for epoch in range(opt.epochs):
        model.train()
        pbar = tqdm(enumerate(train_loader), total=nb, disable=True)
        optimizer.zero_grad()
        for i, (imgs, targets, _paths) in pbar:
            ni = i + nb * epoch
            imgs = imgs.float() / 255
            loss = nn.functional.mse_loss(model(imgs.flatten(1)), targets)
            loss.backward()
            if ni - last_opt_step >= accumulate:
                optimizer.step()
                optimizer.zero_grad()
                ema.update(model)
                last_opt_step = ni
            time.sleep(0.004)
            print(f"epoch {epoch} batch {i} loss {loss.item().hex()}", flush=True)
            pbar.set_description(f"{epoch}/{opt.epochs - 1}")
        scheduler.step()
        total = 0.0
        with torch.no_grad():
            for i, (imgs, targets, _paths) in enumerate(val_loader):
                total += nn.functional.mse_loss(ema.ema(imgs.float().flatten(1) / 255), targets).item()
                print(f"epoch {epoch} validation {i} loss {total.hex()}", flush=True)
        with open(f"{opt.out}/results.csv", "a") as file:
            file.write(f"{epoch},{total.hex()}\n")
        ckpt = {"epoch": epoch, "loss": total, "model": model.state_dict(), "ema": ema.ema.state_dict()}
        torch.save(ckpt, last)
        if total < best_fitness:
            best_fitness = total
            torch.save(ckpt, best)


def parse_opt():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default=".")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_opt())
