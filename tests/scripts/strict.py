"""A training script that notices everything: how many batches an epoch has, what is in them, and what else is called.

    strict.py [--kind KIND] [--epochs N]

The validation loader is larger than the training loader, shuffles, and is iterated first. An assertion fails if an epoch
has another number of batches than the loader, if a label is missing, or if a tensor was changed before.
"""

import argparse
import time
from collections import UserDict
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

LENGTH, BATCH, ACCUMULATE = 90, 8, 4


class Numbers(Dataset[Any]):
    def __init__(self, length: int, offset: float) -> None:
        self.length, self.offset = length, offset

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0005)
        return {"x": torch.full((4,), self.offset + index), "labels": index % 2}


def collate(samples: list[Any]) -> Any:
    return UserDict({name: torch.as_tensor([sample[name].tolist() if name == "x" else sample[name] for sample in samples])
                     for name in samples[0]})  # fmt: skip


class Endless(DataLoader[Any]):
    """One iterator for all epochs, whose ends it counts itself."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


class Repeated:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        while True:
            yield from iter(self.sampler)


def training_loader(kind: str, dataset: Any) -> Any:
    if kind == "batch sampler":
        batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
        return DataLoader(dataset, batch_sampler=batches, num_workers=1, collate_fn=collate)
    if kind == "endless":
        return Endless(dataset, BATCH, shuffle=True, num_workers=1, collate_fn=collate)
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=1, collate_fn=collate)


def main() -> None:
    parser = argparse.ArgumentParser()
    kinds = ["plain", "batch sampler", "endless", "made anew", "in the middle", "no update"]
    parser.add_argument("--kind", choices=kinds, default="plain")
    parser.add_argument("--epochs", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take long
    train, valid = Numbers(LENGTH, 0.0), Numbers(10 * LENGTH, 1000.0)
    loader = training_loader(options.kind, train)
    valid_loader = DataLoader(valid, 30, shuffle=True, num_workers=1, collate_fn=collate)
    per_epoch = -(-LENGTH // BATCH)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    updates = -(-per_epoch // ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-6, epochs=options.epochs, steps_per_epoch=updates)

    def validate(epoch: int) -> None:
        with torch.no_grad():
            count = 0
            for number, batch in enumerate(valid_loader):
                assert float(batch["x"].min()) >= 1000, "training data in the validation"
                model(batch["x"])
                count += len(batch.pop("labels"))
                if number == 2 and options.kind == "in the middle":
                    return
            assert count == len(valid), f"epoch {epoch}: {count} samples to validate"

    validate(-1)
    for epoch in range(options.epochs):
        if options.kind == "made anew":
            loader = training_loader(options.kind, train)
        assert len(loader) == per_epoch
        given = 0
        for number, batch in enumerate(loader):
            assert number < len(loader), f"epoch {epoch} has more batches than the loader"
            labels = batch.pop("labels")
            x = batch.pop("x")
            assert torch.equal(x[:, 0].long() % 2, labels), "a batch was changed before"
            x.sub_(7.0).div_(100.0)
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            time.sleep(0.02)
            if options.kind == "no update":
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 1e-6 * parameter.grad
                        parameter.grad = None
            elif number % ACCUMULATE == ACCUMULATE - 1 or number == len(loader) - 1:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            if options.kind == "in the middle" and number % 5 == 4:
                validate(epoch)
                time.sleep(0.2)
            given += 1
        assert given == per_epoch, f"epoch {epoch} has {given} batches, and the loader {per_epoch}"
        if epoch % 3 == 2 and options.kind != "in the middle":
            validate(epoch)


if __name__ == "__main__":
    main()
