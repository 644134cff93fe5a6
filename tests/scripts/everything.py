"""Loaders of every kind, a group, a cache and checkpoints, each for a moment. Prints what it has done."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

import stoker

WAYS: dict[str, dict[str, Any]] = {
    "here": {},
    "processes": {"num_workers": 2},
    "seed": {"num_workers": 2, "seed": 1},
    "threads": {"num_workers": 2, "workers": "threads"},
    "group": {"num_workers": 1, "group": "everything"},
    "cache": {"num_workers": 2, "cache": "1MB"},
}


class Files:
    """Numbers in files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        for number in range(24):
            path = Path(folder, str(number))
            path.write_bytes(bytes([number]) * 4000)
            os.utime(path, (1, 1))

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(f"{self.folder}/{index}", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def main(folder: str) -> None:
    os.mkdir(f"{folder}/data")
    data = Files(f"{folder}/data")
    for way, options in WAYS.items():
        with stoker.DataLoader(data, 4, **options) as loader:
            for _ in range(2):
                assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(24)), way
            print(way, loader.stats().hits, flush=True)
    model = torch.nn.Linear(10, 10)
    for step in (0, 1):
        with stoker.Checkpointer(f"{folder}/saved", every=1, model=model) as checkpointer:
            assert (checkpointer.restore() or 0) == step
            checkpointer.step()
    print("checkpoints", flush=True)


def place() -> str:
    """A folder to write to; in a container as they come there is one only."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/dev/shm"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        main(folder)
