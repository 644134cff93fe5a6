"""A training script for tests of jobs side by side: files from a folder, and a device that is a timed wait.

    paired.py FOLDER [--epochs N] [--batch N] [--compute MS] [--workers N] [--anew] [--validate] [--log FILE]

With --anew it makes its loader anew for each epoch. With --validate it evaluates before the first epoch and after each,
with a loader of its own that looks like the other one.

At the end it writes to the log, if it is given one, the numbers of the samples of each epoch as it got them.
"""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)[:1000].float().mean(), index


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--compute", type=float, default=20)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--anew", action="store_true")
parser.add_argument("--validate", action="store_true")
parser.add_argument("--log")
options = parser.parse_args()

torch.set_num_threads(1)
data = Files(options.folder)


def make_loader():
    return DataLoader(data, batch_size=options.batch, shuffle=True, num_workers=options.workers)


@torch.no_grad()
def validate():
    for values, _ in DataLoader(data, batch_size=options.batch, num_workers=options.workers):
        values.mean()


if options.validate:
    validate()
loader = make_loader()
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
seen = []
for _ in range(options.epochs):
    if options.anew and seen:
        loader = make_loader()
    seen.append([])
    for values, numbers in loader:
        optimizer.zero_grad()
        ((weight - values.mean()) ** 2).sum().backward()
        optimizer.step()
        time.sleep(options.compute / 1000)
        seen[-1] += numbers.tolist()
    if options.validate:
        validate()
if options.log:
    with open(options.log, "w") as file:
        file.write("\n".join(" ".join(map(str, epoch)) for epoch in seen))
