"""Training scripts in styles that are easily misunderstood: `styles.py KIND`. The loop takes 20 ms for 8 samples.

mean            goes through the training loader once before, with gradients on
split           training and validation share the dataset, and differ in their samplers
accuracy        the training loader is read with gradients off, too
pair            every iteration takes a batch of a second loader, which is of another kind
whole batches   the dataset is asked for whole batches
holes           some samples cannot be read, and the sampler leaves them out
empty           there are fewer samples than a batch has
once            a stream that can be read only once
early           Ctrl-C is how its users end it
"""

import itertools
import sys
import time
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

KIND = sys.argv[1]
LENGTH, TRAINING, BATCH = 400, 320, 8


class Numbers(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            time.sleep(0.002 * len(index))
            return torch.zeros(len(index), 4), torch.tensor(index) % 2
        if KIND == "holes" and index % 7 == 0:
            raise OSError("a damaged file")
        time.sleep(0.002)
        return torch.zeros(4), index % 2


class Once(IterableDataset[Any]):
    left = iter(range(300))

    def __iter__(self) -> Any:
        for index in self.left:
            yield torch.zeros(4), index % 2


torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
dataset = Numbers(LENGTH)


def learn(loader: Any) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        time.sleep(0.02)


def judge(loader: Any) -> None:
    with torch.no_grad():
        for x, _ in loader:
            model(x)


def main() -> None:
    loader: Any = DataLoader(dataset, BATCH, shuffle=True, num_workers=2)
    validation: Any = []
    epochs: Any = itertools.count()
    if KIND == "mean":
        sum(x.mean() for x, _ in loader)
    elif KIND == "split":
        loader = DataLoader(dataset, BATCH, sampler=SubsetRandomSampler(range(TRAINING)), num_workers=2)
        validation = DataLoader(dataset, BATCH, sampler=SubsetRandomSampler(range(TRAINING, LENGTH)), num_workers=2)
    elif KIND == "accuracy":
        validation = loader
    elif KIND == "pair":
        other = DataLoader(TensorDataset(torch.zeros(LENGTH, 4)), BATCH, shuffle=True)
        while True:
            learn(batch for batch, _ in zip(loader, other, strict=False))
    elif KIND == "whole batches":
        batches: Any = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
        loader = DataLoader(dataset, batch_size=None, sampler=batches, num_workers=2)
    elif KIND == "holes":
        whole = [index for index in range(LENGTH) if index % 7]
        loader = DataLoader(dataset, BATCH, sampler=SubsetRandomSampler(whole), num_workers=2)
    elif KIND == "empty":
        loader, epochs = DataLoader(Numbers(4), BATCH, shuffle=True, drop_last=True), range(3)
    elif KIND == "once":
        loader, epochs = DataLoader(Once(), BATCH), range(3)
    for _ in epochs:
        learn(loader)
        judge(validation)


try:
    main()
except KeyboardInterrupt:
    print("ended early")
