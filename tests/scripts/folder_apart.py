"""Reads the files of a folder on several ranks that find their hosts by themselves, and prints what came from where.

torchrun ... folder_apart.py FOLDER CACHE_BYTES [--idle RANK] [--fails-once RANK] [--group-first]

The idle rank makes no loader. The rank that fails does so in the first epoch, unless it has failed before. A process group
is made at the end, so that no rank goes before all are ready; or at the beginning.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch.distributed
from torch.utils.data import Dataset, DistributedSampler

import stoker


class Folder(Dataset[Any]):
    def __init__(self, root: str) -> None:
        self.samples = [(str(path), 0) for path in sorted(Path(root).rglob("*.bin"))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        with open(self.samples[index][0], "rb") as file:
            return len(file.read())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("cache", type=int)
    parser.add_argument("--idle", type=int)
    parser.add_argument("--fails-once", type=int)
    parser.add_argument("--group-first", action="store_true")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.group_first:
        torch.distributed.init_process_group("gloo")
    loader = read(options, rank, world) if rank != options.idle else None
    if not options.group_first:
        torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()  # others may still ask this host
    del loader
    torch.distributed.destroy_process_group()


def read(options: Any, rank: int, world: int) -> Any:
    dataset = Folder(options.folder)
    sampler: Any = DistributedSampler(dataset, world, rank)
    loader = stoker.DataLoader(dataset, 4, sampler=sampler, num_workers=1, cache=options.cache, peers="auto")
    stats, ends_at = loader.stats(), time.monotonic() + 60
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        list(loader)
        if rank == options.fails_once and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise SystemExit(3)
        stats = loader.stats()
        if (stats.hits_peer and epoch > 3) or time.monotonic() > ends_at:
            break
    print("stats", json.dumps({"rank": rank, "hits_peer": stats.hits_peer}), flush=True)
    return loader


if __name__ == "__main__":
    main()
