"""Trains with workers on other hosts until standard input says "end". Prints a line of JSON after each epoch.

offloaded.py [OFFLOAD]       (without, `stoker run` says it)
"""

import hashlib
import json
import os
import select
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH = 96, 8


class Noisy(Dataset[Any]):
    """Samples that draw, and take a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float]:
        time.sleep(self.seconds)
        return torch.rand(700) + index, index, float(np.random.random())


def epoch_of(loader: Any) -> dict[str, Any]:
    """What an epoch consisted of."""
    content, seen = hashlib.sha256(), []
    for numbers, indices, drawn in loader:
        for tensor in (numbers, indices, drawn):
            content.update(tensor.numpy().tobytes())
        seen += indices.tolist()
    return {"digest": content.hexdigest(), "is_whole": sorted(seen) == list(range(SAMPLES))}


def main() -> None:
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "persistent_workers": True}
    if len(sys.argv) > 1:
        import stoker

        plan = stoker.Plan(offload_ratio=1.0)
        loader: Any = stoker.DataLoader(Noisy(0.004), BATCH, seed=3, offload=sys.argv[1], plan=plan, **options)
    else:
        loader = DataLoader(Noisy(0.004), BATCH, **options)
    is_over = False
    while not is_over:
        found = epoch_of(loader) | {"remote": loader.stats().remote}
        print(json.dumps(found), flush=True)
        is_over = bool(select.select([0], [], [], 0)[0]) and os.read(0, 100) in (b"", b"end\n")


if __name__ == "__main__":
    main()
