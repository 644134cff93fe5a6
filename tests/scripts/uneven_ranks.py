"""Trains on several ranks, of which rank 0 has the dearest samples. Prints every loss of rank 0, to the last digit.

torchrun ... uneven_ranks.py [--draws] [--persistent] [--unequal] [--epochs N] [--dies FOLDER] [--meets FOLDER]

With --dies the last rank is killed in its first attempt. Ranks then meet in that folder: in the store of torchrun's agent
they may find addresses of the attempt before. With --meets it begins when the ranks of two jobs have their
loaders, and every sample that is prepared leaves a line in that folder.
"""

import argparse
import os
import random
import signal
import time
from typing import Any

import torch
import torch.distributed
from descent import descend
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Uneven(Dataset[Any]):
    def __init__(self, world: int, draws: bool, log: str | None) -> None:
        self.world, self.draws, self.log = world, draws, log

    def __len__(self) -> int:
        return 16 * 4 * self.world

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.008 if index % self.world == 0 else 0.001)
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{index}\n")
        picture = torch.full((8,), index / len(self))
        if self.draws:
            picture = picture + random.random() + torch.rand(8)
        return picture, index % 2


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--draws", "--persistent", "--unequal"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--dies")
    parser.add_argument("--meets")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if options.dies:
        who = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{options.dies}/{attempt}-{os.environ['MASTER_PORT']}", **who
        )
    else:
        torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    dataset = Uneven(world, options.draws, options.meets and f"{options.meets}/prepared")
    sampler: Any = DistributedSampler(dataset, shuffle=False)
    workers = 1 + (rank % 2 if options.unequal else 0)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=workers, persistent_workers=options.persistent)
    if options.meets:
        open(f"{options.meets}/here-{os.getpid()}", "w").close()
        while sum(name.startswith("here-") for name in os.listdir(options.meets)) < 2 * world:
            time.sleep(0.01)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for number, (pictures, labels) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            descend(model, loss)
            if options.dies and number == 6 and rank == world - 1 and attempt == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                print(f"{epoch} {number} {loss.item()!r}", flush=True)
    seen = torch.tensor([float(len(loader)) * options.epochs])
    torch.distributed.all_reduce(seen)
    if rank == 0:
        print("batches", int(seen), os.environ["WORLD_SIZE"], flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
