"""Samplers of people's own, whose iterators are asked for as often as torch does, and give each index once."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stoker
from stoker.errors import ConfigError

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


class Endless(torch.utils.data.Sampler[int]):
    """Goes on for ever, and has a length: that of one pass over the data."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        for _ in range(10_000):  # so that a loader that waits for the end fails in time
            yield from torch.randperm(COUNT).tolist()
        raise AssertionError("the end is asked for")


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


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_a_sampler_with_a_length_may_go_on_for_ever(workers: dict[str, Any]) -> None:
    """Many libraries have such a sampler, for training by steps."""

    def first(count: int, loader: Any) -> list[Any]:
        return [batch.tolist() for batch in itertools.islice(loader, count)]

    with (
        stoker.DataLoader(range(COUNT), 2, sampler=Endless(), seed=1, **workers) as loader,  # type: ignore[arg-type]
        stoker.DataLoader(range(COUNT), 2, sampler=Endless(), seed=1, **workers) as other,  # type: ignore[arg-type]
    ):
        seen = first(21, loader)
        assert sorted(itertools.chain(*seen)) == sorted([*range(COUNT)] * 6)
        assert first(9, other) == seen[:9]
        other.load_state_dict(other.state_dict())
        assert first(12, other) == seen[9:]


def test_a_sampler_that_goes_on_for_ever_is_none_for_a_group() -> None:
    with pytest.raises(ConfigError, match="does not end"):
        list(stoker.DataLoader(range(COUNT), 2, sampler=Endless(), group=f"endless-{os.getpid()}"))  # type: ignore[arg-type]
