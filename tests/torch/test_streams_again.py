"""States that are taken of loops which went on from a state: restarted again and again, nothing is lost or repeated."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.streams import (
    Items,
    OwnIterator,
    ResumesOnce,
    StatefulItems,
    StatefulSampler,
    StatefulStream,
)
from torch.utils.data import Sampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import stoker

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital' is deprecated")

COUNT = 23
END = "end of the epoch"


class InThrees(Sampler[list[int]]):
    """Gives whole batches, and has a state."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Any:
        while self.place < COUNT:
            self.place += 3
            yield list(range(self.place - 3, min(self.place, COUNT)))
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Large(StatefulStream):
    """Its state is too large to travel with a report."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "buffer": np.full(100_000, self.place, np.uint8)}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "stateful stream": lambda: {"dataset": StatefulStream(COUNT)},
    "its own iterator": lambda: {"dataset": OwnIterator(COUNT)},
    "resumes once": lambda: {"dataset": ResumesOnce(COUNT)},
    "large": lambda: {"dataset": Large(COUNT)},
    "stateful sampler": lambda: {"dataset": Items(COUNT), "sampler": StatefulSampler(COUNT)},
    "torchdata's sampler": lambda: {"dataset": Items(COUNT), "sampler": StatefulDistributedSampler(Items(COUNT), 1, 0)},
    "sampler of batches": lambda: {"dataset": Items(COUNT), "batch_sampler": InThrees(), "batch_size": 1},
}


def make(kind: str, **options: Any) -> Any:
    return stoker.DataLoader(**{"batch_size": 3, **KINDS[kind](), **options})


def listed(batch: Any) -> Any:
    return [part.tolist() for part in batch]


def uninterrupted(kind: str, epochs: int, **options: Any) -> list[Any]:
    seen = []
    with make(kind, **options) as loader:
        for _ in range(epochs):
            seen += [*map(listed, loader), END]
    return seen


def restarted(kind: str, hops: list[int], **options: Any) -> list[Any]:
    """Go on in a new loader after so many batches, for ever. States are taken when the epoch has begun."""
    seen: list[Any] = []
    state = None
    for hop in hops:
        with make(kind, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            left = hop
            while True:
                iterator = iter(loader)
                found = list(itertools.islice(iterator, left))
                seen += map(listed, found)
                left -= len(found)
                if not left:
                    break
                seen.append(END)
            state = loader.state_dict()
    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("every", [1, 3])
def test_restarted_again_and_again(kind: str, options: dict[str, Any], every: int) -> None:
    expected = uninterrupted(kind, 3, **options)
    hops = [0, 1, 0, 2, 5, 0, 0, 1, 3, 2, 1, 4]
    seen = restarted(kind, hops, snapshot_every_n_steps=every, **options)
    assert seen == expected[: len(seen)]
    assert seen.count(END) == 2


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("kind", ["large", "resumes once"])
def test_from_between_two_epochs_of_workers_that_stay(kind: str, workers: str) -> None:
    """The state at the end is like the one before, or there was no room for it."""
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "workers": workers, "prefetch_factor": 5}
    expected = uninterrupted(kind, 2, **options)
    epoch = expected.index(END)
    with make(kind, **options) as loader:
        iterator = iter(loader)
        seen = [listed(next(iterator)) for _ in range(epoch - 2)]
        states = [loader.state_dict()]
        seen += [*map(listed, iterator), END]
        states.append(loader.state_dict())
    with make(kind, snapshot_every_n_steps=7, **options) as other:
        other.load_state_dict(states[0])
        assert [*map(listed, other)] == expected[epoch - 2 : epoch]
        states.append(other.state_dict())
    for state in states[1:]:
        with make(kind, **options) as other:
            other.load_state_dict(state)
            assert [*seen, *map(listed, other), END] == expected


def test_batches_that_were_overtaken_stay_so_until_they_are_seen() -> None:
    with make("stateful sampler", num_workers=2, in_order=False, prefetch_factor=3) as loader:
        iterator = iter(loader)
        seen = [listed(next(iterator)) for _ in range(2)]
        state = loader.state_dict()
    drawn = [index for batch in _orders() for index in batch]
    left = [index for index in drawn if index not in {index for batch in seen for index in batch[0]}]
    last = [left[:3], left[3:6]]
    state["streams"]["pending"], state["streams"]["sampler"] = last, _sampler_after(4)
    for workers, in_order in ((0, True), (2, True), (2, False), (1, False)):
        found, again = [], state
        for _ in range(6):
            with make("stateful sampler", num_workers=workers, in_order=in_order) as other:
                other.load_state_dict(again)
                iterator = iter(other)
                other.load_state_dict(other.state_dict())
                found.append(listed(next(iter(other)))[0])
                again = other.state_dict()
        assert sorted(itertools.chain(*found, *(batch[0] for batch in seen))) == list(range(COUNT))


def _orders() -> list[list[int]]:
    order = list(StatefulSampler(COUNT))
    return [order[first : first + 3] for first in range(0, COUNT, 3)]


def _sampler_after(batches: int) -> dict[str, Any]:
    sampler = StatefulSampler(COUNT)
    _ = list(itertools.islice(iter(sampler), 3 * batches))
    return {"sampler": sampler.state_dict()}


@pytest.mark.parametrize("persistent", [False, True])
def test_threads_that_get_no_batch_tell_how_they_begin(persistent: bool) -> None:
    options: dict[str, Any] = {"num_workers": 3, "workers": "threads", "persistent_workers": persistent}
    for _ in range(2):
        loader = stoker.DataLoader(StatefulItems(2), batch_size=1, **options)
        iterator = iter(loader)
        first = next(iterator)
        state = loader.state_dict()
        other = stoker.DataLoader(StatefulItems(2), batch_size=1, **options)
        other.load_state_dict(state)
        assert [listed(batch)[0] for batch in [first, *other]] == [[0], [1]]
        loader.close()
        other.close()


def test_a_state_of_torchs_generator_alone_is_no_state_of_a_sampler() -> None:
    loader = stoker.DataLoader(Items(COUNT), shuffle=True, generator=torch.Generator().manual_seed(1))
    iter(loader)
    assert "streams" not in loader.state_dict()


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("every", [1, 3])
def test_from_before_the_end_of_an_epoch_twice(workers: str, every: int) -> None:
    """Between epochs there is only a state from the middle, and the next state is taken before, or after, a batch."""
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "workers": workers}
    expected = uninterrupted("stateful stream", 2, **options)
    epoch = expected.index(END)
    with make("stateful stream", **options) as loader:
        middle = [loader.state_dict() for _ in loader]
        state = loader.state_dict()
    before = [
        {**one, "batches": 0, "since": last["batches"] - 1}
        for one, last in zip(middle[1]["streams"]["states"], middle[-1]["streams"]["states"], strict=True)
    ]
    state["streams"] = {**middle[1]["streams"], "of": 0, "states": before}
    for seen in (0, 1):
        with make("stateful stream", snapshot_every_n_steps=every, **options) as first:
            first.load_state_dict(state)
            found = [listed(batch) for batch in itertools.islice(iter(first), seen)]
            again = first.state_dict()
        with make("stateful stream", **options) as other:
            other.load_state_dict(again)
            assert [*found, *map(listed, other), END] == expected[epoch + 1 :]
