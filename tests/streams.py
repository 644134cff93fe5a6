"""Streams, datasets and samplers for tests of states. Each worker has a part of the numbers."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


def part_of(count: int) -> range:
    """The numbers of this worker: parts are of different lengths."""
    info = get_worker_info()
    if info is None:
        return range(count)
    return range(info.id, count - 5 * info.id, info.num_workers)


class StatefulStream(IterableDataset[Any]):
    """Keeps its place by itself, and begins anew when it is over. Augmentations come from a generator in its state."""

    def __init__(self, count: int) -> None:
        self.count, self.place, self.epoch = count, 0, 0
        self.rng = np.random.default_rng(7)

    def __iter__(self) -> Iterator[Any]:
        numbers = part_of(self.count)
        while self.place < len(numbers):
            self.place += 1
            yield numbers[self.place - 1], self.epoch, self.rng.random()
        self.place, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "epoch": self.epoch, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.epoch = state["place"], state["epoch"]
        self.rng.bit_generator.state = state["rng"]


class _Counting:
    def __init__(self, numbers: range) -> None:
        self.numbers, self.place = numbers, 0

    def __iter__(self) -> "_Counting":
        return self

    def __next__(self) -> Any:
        if self.place >= len(self.numbers):
            raise StopIteration
        self.place += 1
        return self.numbers[self.place - 1], 0, float(torch.rand(())) if get_worker_info() is not None else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]
        torch.set_rng_state(state["torch"])


class StatefulIterator(IterableDataset[Any]):
    """Its iterators have the state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return _Counting(part_of(self.count))


class OwnIterator(IterableDataset[Any]):
    """Is its own iterator."""

    def __init__(self, count: int) -> None:
        self.count, self.place = count, 0

    def __iter__(self) -> Iterator[Any]:
        self.place = 0
        return self

    def __next__(self) -> Any:
        numbers = part_of(self.count)
        if self.place >= len(numbers):
            raise StopIteration
        self.place += 1
        return numbers[self.place - 1], 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Plain(IterableDataset[Any]):
    """Has no state. What it draws in workers repeats itself with the epoch's seed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        draws = get_worker_info() is not None
        return ((number, 0, random.random() if draws else 0.0) for number in part_of(self.count))


class SaysNone(Plain):
    """Has the methods of the protocol, and no state."""

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("there was no state")


class ResumesOnce(IterableDataset[Any]):
    """Goes on once from what was loaded, as Hugging Face's do: at the next `iter()`, and at no other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.place, self.loaded = 0, 0

    def __iter__(self) -> Iterator[Any]:
        numbers = part_of(self.count)
        self.place, self.loaded = self.loaded, 0
        while self.place < len(numbers):
            self.place += 1
            yield numbers[self.place - 1], 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["place"]


class Items(Dataset[Any]):
    """Map-style, without a state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return index, 0, 0.0


class StatefulItems(Items):
    """Map-style, and counts what it has given."""

    given = 0

    def __getitem__(self, index: int) -> Any:
        self.given += 1
        return index, self.given, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class StatefulSampler(Sampler[int]):
    """Draws from a generator of its own, which nobody else can see, and goes on where it was."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._draws = random.Random(3)
        self._order: list[int] = []
        self._place = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        if not self._order:
            self._order = self._draws.sample(range(self.count), self.count)
        while self._place < self.count:
            self._place += 1
            yield self._order[self._place - 1]
        self._order, self._place = [], 0

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order, "place": self._place, "draws": self._draws.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order, self._place = list(state["order"]), state["place"]
        version, numbers, last = state["draws"]
        self._draws.setstate((version, tuple(numbers), last))


class _Backwards:
    def __init__(self, count: int) -> None:
        self.left = count

    def __iter__(self) -> "_Backwards":
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


class IteratorSampler(Sampler[int]):
    """Its iterators have the state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return _Backwards(self.count)
