"""Train on the pictures of a folder with an accelerator that is imagined: the loop waits for as long as one would compute.

python imagined_device.py FOLDER/pictures --epochs 3 --workers 2 --batch-ms 20

Where there is a real one, the cores of the host belong to the workers. A model that computes on the processor would take
them away; this loop does not. Pictures, crops and flips are those of images.py. Prints samples per second for each epoch.
"""

import argparse
import random
import time

import torch
from images import Pictures
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-ms", type=float, default=20.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)

    loader = DataLoader(Pictures(options.folder), options.batch, shuffle=True, num_workers=options.workers)
    for epoch in range(options.epochs):
        began, samples = None, 0
        for _pixels, labels in loader:
            time.sleep(options.batch_ms / 1000)
            if began is None:  # the first batch waits for workers to start
                began = time.perf_counter()
            else:
                samples += len(labels)
        print(f"epoch {epoch}: {samples / (time.perf_counter() - began):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
