"""Batches that are given again and again, whatever a script does to them."""

import threading
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stoker.errors import CommandError
from stoker.run.replay import KeptBatch

META = torch.device("meta")
"""A device that every machine has: what is there is not on the host."""


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


class Graph:
    """As graph libraries have it: tensors among the attributes, and a way to a device."""

    def __init__(self, x: torch.Tensor, edges: torch.Tensor) -> None:
        self.x, self.edges, self.store = x, edges, {"edges": edges}

    def to(self, device: Any) -> "Graph":
        raise AssertionError("not needed")


Named = namedtuple("Named", "x y")


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(6.0).reshape(3, 2), torch.tensor([1, 2, 3])


BATCHES = {
    "list": list(tensors()),
    "named tuple": Named(*tensors()),
    "dict": dict(zip("xy", tensors(), strict=True)),
    "user dict": UserDict(zip("xy", tensors(), strict=True)),
    "dataclass": Pair(*tensors()),
    "object": Graph(*tensors()),
    "nested": {"images": [torch.ones(2, 3), torch.zeros(4)], "targets": ({"boxes": torch.ones(1, 4)}, "a name", 3)},
}


@pytest.mark.parametrize("kind", BATCHES)
def test_every_one_is_fresh_and_wholly_on_the_device(kind: str) -> None:
    kept = KeptBatch(BATCHES[kind])
    first, second = kept.fresh(), kept.fresh()
    assert type(first) is type(BATCHES[kind])
    found = KeptBatch(first)
    assert [tensor.tolist() for tensor in found._tensors] == [tensor.tolist() for tensor in kept._tensors]
    spoiled = [tensor.zero_() for tensor in _tensors_in(first)]
    assert len(spoiled) == len(kept._tensors)
    assert [tensor.tolist() for tensor in _tensors_in(second)] == [tensor.tolist() for tensor in kept._tensors]
    moved = kept.on(META)
    assert moved is not None
    assert all(tensor.is_meta for tensor in _tensors_in(moved.fresh()))


def _tensors_in(batch: Any) -> list[torch.Tensor]:
    """In the order in which a pickle finds them."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict | UserDict):
        return [found for part in batch.values() for found in _tensors_in(part)]
    if isinstance(batch, list | tuple):
        return [found for part in batch for found in _tensors_in(part)]
    if isinstance(batch, Graph):
        assert batch.store["edges"] is batch.edges  # what was one tensor still is
        return [batch.x, batch.edges]
    return _tensors_in(vars(batch)) if hasattr(batch, "__dict__") else []


def test_labels_that_are_popped_are_there_again() -> None:
    kept = KeptBatch(UserDict(zip("xy", tensors(), strict=True)))
    kept.fresh().pop("y")
    assert set(kept.fresh()) == {"x", "y"}


def test_a_class_that_cannot_be_pickled_is_copied_but_not_moved() -> None:
    class Local:
        def __init__(self) -> None:
            self.x = torch.ones(3)

    kept = KeptBatch(Local())
    first = kept.fresh()
    first.x.zero_()
    assert kept.fresh().x.tolist() == [1, 1, 1]
    assert kept.on(META) is None
    assert kept.on(None) is kept


def test_tensors_that_require_gradients_still_do() -> None:
    kept = KeptBatch([torch.ones(2, requires_grad=True), torch.ones(2)])
    assert [tensor.requires_grad for tensor in kept.fresh()] == [True, False]
    assert all(tensor.is_leaf for tensor in kept.fresh())


def test_a_batch_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(CommandError, match="cannot be copied"):
        KeptBatch([torch.ones(2), threading.Lock()])


def test_the_batch_that_was_kept_may_be_changed() -> None:
    batch = list(tensors())
    kept = KeptBatch(batch)
    batch[0].zero_()
    assert kept.fresh()[0][0, 1] == 1
