"""A training process with two workers, until somebody ends it. Prints its workers' pids, then a line per batch."""

import sys
import threading

import torch

import stoker


class Dataset(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), index)


def train() -> None:
    options = {"persistent_workers": True} if "persistent" in sys.argv else {}
    loader = stoker.DataLoader(Dataset(), batch_size=64, num_workers=2, sampler=range(1 << 30), **options)
    iterator = iter(loader)
    print(*(worker.pid for worker in iterator._workers), flush=True)
    if "idle" in sys.argv:
        next(iterator)
        threading.Event().wait()
    while True:
        next(iterator)
        if "quiet" not in sys.argv:
            print("batch", flush=True)


if __name__ == "__main__":
    if "thread" in sys.argv:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    else:
        train()
