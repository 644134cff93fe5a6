"""A training process in a group, which loads until it is ended: `NAME WORKERS SECONDS`, of which a step takes so many.

Prints a line when it has joined, and one when it has got its first batches.
SIGUSR1 makes its steps ten times as long.
"""

import signal
import sys
import time
from types import FrameType

import torch

import stoker


class Pictures(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), index)


if __name__ == "__main__":
    name, workers, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

    def slow_down(_signal: int, _frame: FrameType | None) -> None:
        global seconds
        seconds *= 10

    signal.signal(signal.SIGUSR1, slow_down)
    loader = stoker.DataLoader(Pictures(), batch_size=8, num_workers=workers, group=name)
    print("joined", flush=True)
    sys.stdin.readline()  # so that all are there when the first begins
    while True:
        for number, _ in enumerate(loader):
            if number == 1:
                print("ready", flush=True)
            time.sleep(seconds)
