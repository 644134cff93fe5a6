"""One process of a training under DistributedDataParallel: BatchNorm, dropout, and a sampler that shares the samples.

    train_ddp.py PLACE STEPS [--every K] [--keep K] [--pause S] [--hold STEP]

Appends "step loss" to PLACE/losses-RANK for each iteration, and writes a digest of the final state to PLACE/end-RANK. The
step of the newest checkpoint that it knows to be on disk is in PLACE/saved-RANK.
With --hold it waits after that step, and for what is being saved, until there is a file PLACE/go.
The processes find each other as torchrun says, or by the file that RENDEZVOUS names.
"""

import argparse
import hashlib
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler

import stoker


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 75

    def __getitem__(self, index: int) -> Any:
        x = torch.full((16,), float(index)) + torch.rand(16) + random.random() + float(np.random.rand())
        return x, index % 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--every", type=int)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--hold", type=int)
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = f"file://{os.environ['RENDEZVOUS']}" if "RENDEZVOUS" in os.environ else "env://"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)  # dropout differs from rank to rank
    model = DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Linear(16, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(16, 3),
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler: DistributedSampler[Any] = DistributedSampler(Noisy(), shuffle=True, seed=3)
    loader = stoker.DataLoader(Noisy(), 8, sampler=sampler, seed=5)
    with stoker.Checkpointer(
        options.place / "checkpoints",
        every=options.every,
        keep=options.keep,
        model=model,
        optimizer=optimizer,
        loader=loader,
    ) as checkpointer:
        step = checkpointer.restore() or 0
        print(f"restored {step}", flush=True)
        with (options.place / f"losses-{rank}").open("a", buffering=1) as losses:
            while step < options.steps:
                loader.set_epoch(step // len(loader))
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x), y) * (1 + 0.1 * torch.rand(()))
                    loss.backward()
                    optimizer.step()
                    step += 1
                    losses.write(f"{step} {loss.item().hex()}\n")
                    checkpointer.step()
                    (options.place / f"saved-{rank}").write_text(str(checkpointer.stats().last_step or 0))
                    time.sleep(options.pause)
                    if step == options.hold:
                        checkpointer._wait_saved()
                        (options.place / f"saved-{rank}").write_text(str(checkpointer.stats().last_step or 0))
                        while not (options.place / "go").exists():
                            time.sleep(0.01)
                    if step == options.steps:
                        break
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    (options.place / f"end-{rank}").write_text(digest.hexdigest())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
