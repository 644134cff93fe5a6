"""Samplers of people's own, whose iterators are asked for as often as torch does, and give each index once."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stoker

COUNT = 7


class BeginsAnew:
    """Is its own iterator: `iter()` sets it back."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> "BeginsAnew":
        self.place = 0
        return self

    def __next__(self) -> list[int]:
        if self.place == COUNT:
            raise StopIteration
        self.place += 1
        return [self.place - 1]


class DrawsAtOnce:
    """Draws its order when it is asked for an iterator, and counts that."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.asked += 1
        return iter([[(place + self.asked) % COUNT] for place in torch.randperm(COUNT).tolist()])


class CountsAtOnce(DrawsAtOnce):
    """Its state says which order is the next one."""

    def __iter__(self) -> Iterator[list[int]]:
        self.asked += 1
        return iter([[(place + self.asked) % COUNT] for place in range(COUNT)])

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


WORKERS = {"none": {"num_workers": 0}, "processes": {"num_workers": 2}, "threads": {"num_workers": 2, "workers": "threads"}}


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("kind", [BeginsAnew, DrawsAtOnce, CountsAtOnce])
def test_samplers_are_asked_for_iterators_as_often_as_by_torch(kind: Any, workers: dict[str, Any]) -> None:
    seen = []
    for make in (torch.utils.data.DataLoader, stoker.DataLoader):
        options = workers if make is stoker.DataLoader else {"num_workers": workers["num_workers"]}
        torch.manual_seed(3)
        loader: Any = make(range(COUNT), batch_sampler=kind(), **options)
        epochs = [[batch.tolist() for batch in itertools.islice(loader, COUNT + 1)] for _ in range(2)]
        seen.append((epochs, torch.get_rng_state().tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_at_once_resumes_before_its_first_batch(workers: int) -> None:
    loader = stoker.DataLoader(range(COUNT), batch_sampler=CountsAtOnce(), num_workers=workers)  # type: ignore[arg-type]
    _ = list(loader)
    iterator = iter(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in iterator]
    other = stoker.DataLoader(range(COUNT), batch_sampler=CountsAtOnce(), num_workers=workers)  # type: ignore[arg-type]
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == expected
