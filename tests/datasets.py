"""Datasets that tests load, in a module of their own so that spawned workers can import them."""

import gc
import random
import sys
from collections import namedtuple
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Point = namedtuple("Point", ["x", "label"])


class Numbers(Dataset):
    """Sample i is a tensor full of i, and i."""

    def __init__(self, count: int = 40, shape: tuple[int, ...] = (64, 64)) -> None:
        self.count = count
        self.shape = shape

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full(self.shape, float(index)), index


class Uncollected(Numbers):
    """Whether the collector of this process has been told to leave objects alone, by others than `tests/startup`."""

    def __getitem__(self, index: int) -> Any:
        return gc.get_freeze_count() > getattr(sys.modules.get("sitecustomize"), "frozen", 0)


class Augmented(Numbers):
    """Draws from all three generators."""

    def __getitem__(self, index: int) -> Any:
        return torch.rand(3), np.random.rand(2), random.random(), index


SAMPLES = {
    "float tensor": lambda i: torch.full((3, 5), i + 0.5),
    "large tensor": lambda i: torch.arange(20_000) + i,
    "transposed tensor": lambda i: torch.arange(6).reshape(2, 3).t() + i,
    "bool tensor": lambda i: torch.tensor([i % 2 == 0, True]),
    "bfloat16 tensor": lambda i: torch.full((4,), i, dtype=torch.bfloat16),
    "complex tensor": lambda i: torch.full((2,), complex(i, -i)),
    "empty tensor": lambda i: torch.empty(0, 4),
    "scalar tensor": lambda i: torch.tensor(i),
    "array": lambda i: np.full((4, 3), i, np.uint8),
    "large array": lambda i: np.full((200, 100), i, np.float32),
    "fortran array": lambda i: np.asfortranarray(np.arange(6.0).reshape(2, 3) + i),
    "strided array": lambda i: (np.arange(20) + i)[::2],
    "scalar array": lambda i: np.array(i),
    "empty array": lambda i: np.empty((0, 2)),
    "uint16 array": lambda i: np.full((3,), i, np.uint16),
    "backward array": lambda i: np.arange(5)[::-1] + 0 if i % 2 else np.arange(5)[::-1],
    "big-endian array": lambda i: np.full((3,), i, ">i4"),
    "text array": lambda i: np.array(["a", "b"]),
    "numpy scalar": lambda i: np.float32(i),
    "int": lambda i: i,
    "huge int": lambda i: 2**70 + i,
    "mixed numbers": lambda i: i if i % 3 else i + 0.5,
    "bool": lambda i: i % 2 == 0,
    "float": lambda i: i / 3,
    "str": lambda i: f"sample {i}",
    "bytes": lambda i: bytes([i % 256]) * 3000,
    "none": lambda i: None,
    "tuple": lambda i: (torch.full((2,), float(i)), i, "s"),
    "list": lambda i: [np.full((2,), i), [i, float(i)]],
    "dict": lambda i: {"x": torch.full((3,), i), "y": {"z": i}},
    "namedtuple": lambda i: Point(torch.full((2, 2), float(i)), i),
    "ragged tensor": lambda i: torch.zeros(i % 3 + 1),
    "ragged array": lambda i: np.zeros((i % 3 + 1, 2)),
    "ragged list": lambda i: [1] * (i % 2 + 1),
    "ragged dimensions": lambda i: np.zeros((2,) * (i % 2 + 1)),
    "two dtypes": lambda i: torch.zeros(2, dtype=torch.float32 if i % 2 else torch.int64),
    "two array dtypes": lambda i: np.zeros(2, np.float32 if i % 2 else np.int64),
    "tensor, then number": lambda i: torch.ones(2) if i % 3 == 0 else 1.5,
    "tensor, then array": lambda i: torch.ones(2) if i % 3 == 0 else np.ones(2),
    "random": lambda i: (torch.rand(3), np.random.rand(2), random.random()),
    "shared": lambda i: _twice(torch.full((3,), float(i))),
    "requires grad": lambda i: torch.ones(2, requires_grad=True),
    "sparse": lambda i: torch.eye(3).to_sparse(),
}
"""What a dataset may return, by name: good, odd and bad."""


def _twice(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor, tensor.view(-1, 1)


class Samples(Dataset):
    """Samples of one kind. Some raise."""

    def __init__(self, kind: str, count: int, raising: dict[int, str] | None = None) -> None:
        self.kind = kind
        self.count = count
        self.raising = raising or {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.raising:
            raise ERRORS[self.raising[index]](f"sample {index}")
        return SAMPLES[self.kind](index)


class BulkSamples(Samples):
    """The same, asked for many at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """The same as a stream, sharded over workers unevenly."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.count = count

    def __iter__(self) -> Any:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        stop = self.count if start == 0 else self.count // 2
        return (SAMPLES[self.kind](index) for index in range(start, stop, step))


class OddError(Exception):
    """An exception that cannot be made from one message."""

    def __init__(self, text: str, code: int = 7) -> None:
        super().__init__(text)
        self.code = code


ERRORS = {"value": ValueError, "key": KeyError, "odd": OddError, "stop": StopIteration, "os": OSError}


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def first_and_views(samples: list[Any]) -> Any:
    """A collation whose results share memory."""
    stacked = torch.stack([torch.full((8,), float(index)) for index in range(len(samples))])
    return {"all": stacked, "row": stacked[0], "columns": stacked.t(), "again": stacked}


def arrays_and_objects(samples: list[Any]) -> Any:
    return np.arange(len(samples) * 5000.0).reshape(-1, 50), {"n": len(samples)}, [b"x" * 5000] * 3


COLLATIONS = {"none": None, "as they are": as_they_are, "views": first_and_views, "arrays": arrays_and_objects}


class WithRng(Numbers):
    """Draws only from what it is given."""

    def __getsample__(self, index: int, rng: np.random.Generator) -> Any:
        return torch.from_numpy(rng.random(3)), index

    def __getitem__(self, index: int) -> Any:
        return self.__getsample__(index, np.random.default_rng())


class DrawsNow(Numbers):
    """Draws for some samples only."""

    def __getitem__(self, index: int) -> Any:
        return (torch.rand(2) if index % 7 == 3 else torch.zeros(2)), index


def mix_up(samples: list[Any]) -> Any:
    """A collation that draws."""
    batch = torch.utils.data.default_collate(samples)
    return [*batch, torch.rand(2), np.random.rand(1), random.random()]
