"""A training process that loads until it is ended: `steady WORKERS`, or `blocks WORKERS` whose third batch never comes.

Prints a line when it has got its first batches.
"""

import sys
import threading
import time

import torch

import stoker


class Pictures(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if "blocks" in sys.argv and index >= 16:
            threading.Event().wait()
        return torch.full((10,), index)


if __name__ == "__main__":
    loader = stoker.DataLoader(Pictures(), batch_size=8, num_workers=int(sys.argv[2]), prefetch_factor=None)
    for number, _ in enumerate(loader):
        if number == 1:
            print("ready", flush=True)
        time.sleep(0.01)
