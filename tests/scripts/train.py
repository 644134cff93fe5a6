"""A training with all that a checkpoint must hold: BatchNorm, a moving average, a scaler, two optimizers, augmentation.

    train.py DIRECTORY LOSSES STEPS [--every K] [--workers N] [--width W] [--pause S]

Appends "step loss" to LOSSES for each iteration, and writes a digest of the final state to LOSSES.end.
"""

import argparse
import hashlib
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import stoker


class Noisy(Dataset[Any]):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        x = torch.full((self.width,), float(index)) + torch.rand(self.width) + random.random() + float(np.random.rand())
        return x, index % 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("losses", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--every", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    torch.set_num_threads(1)
    body = torch.nn.Sequential(
        torch.nn.Linear(options.width, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2)
    )
    head = torch.nn.Linear(16, 3)
    model = torch.nn.ModuleDict({"body": body, "head": head})
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    first = torch.optim.AdamW(body.parameters(), lr=1e-2)
    second = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(first, 50)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
    loader = stoker.DataLoader(Noisy(options.width), 8, shuffle=True, num_workers=options.workers, seed=5)
    with stoker.Checkpointer(
        options.directory,
        every=options.every,
        model=model,
        average=average,
        first=first,
        second=second,
        schedule=schedule,
        scaler=scaler,
        loader=loader,
    ) as checkpointer:
        step = checkpointer.restore() or 0
        print(f"restored {step}", flush=True)
        with options.losses.open("a", buffering=1) as losses:
            while step < options.steps:
                for x, y in loader:
                    for optimizer in (first, second):
                        optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(head(body(x)), y) * (1 + 0.1 * torch.rand(()))
                    scaler.scale(loss).backward()
                    for optimizer in (first, second):
                        scaler.step(optimizer)
                    scaler.update()
                    schedule.step()
                    average.update_parameters(model)
                    step += 1
                    losses.write(f"{step} {loss.item().hex()}\n")
                    checkpointer.step()
                    time.sleep(options.pause)
                    if step == options.steps:
                        break
        print(checkpointer.stats(), flush=True)
    digest = hashlib.sha256()
    for part in (model, average):
        for tensor in part.state_dict().values():
            digest.update(tensor.numpy().tobytes())
    Path(f"{options.losses}.end").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
