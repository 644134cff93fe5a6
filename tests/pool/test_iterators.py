"""Iterators over pools, where torch's iterator was before: what they leave behind, and what they say."""

import gc
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.tries import fastest, seconds
from torch.utils.data import get_worker_info

import stoker


class Numbers:
    def __init__(self, length: int = 40, size: int = 8000) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((self.size,), number)


class Who(Numbers):
    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor(get_worker_info().id)


class Failing(Numbers):
    def __getitem__(self, number: int) -> torch.Tensor:
        if number == 5:
            raise ValueError("number 5")
        return super().__getitem__(number)


class Until:
    """A sampler of the user's that fails."""

    def __iter__(self) -> Iterator[int]:
        yield from range(7)
        raise ValueError("no more numbers")


class Endless:
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(10))


def lent(loader: Any) -> int:
    """Slots of its workers that are not free."""
    inbox = loader._iterator._pool._slots.inbox
    return int(inbox._turns[: inbox.area.workers].sum())


def test_an_epoch_ends_at_once_though_another_process_was_forked_meanwhile() -> None:
    def end() -> float:
        loader = stoker.DataLoader(Numbers(), 4, num_workers=2, seed=1)
        batches = iter(loader)
        next(batches)
        go_on, wait = os.pipe()
        child = os.fork()
        if not child:  # holds all that it has inherited
            os.close(wait)
            os.read(go_on, 1)
            os._exit(0)
        try:
            return seconds(lambda: list(batches))
        finally:
            os.close(wait)
            os.close(go_on)
            os.waitpid(child, 0)

    assert fastest(end, 3.0) < 3.0


def test_epochs_that_are_left_early_keep_no_slot() -> None:
    with stoker.DataLoader(Numbers(), 4, num_workers=2, prefetch_factor=4, seed=1, persistent_workers=True) as loader:
        for _ in range(12):
            next(iter(loader))
        iter(loader)
        assert lent(loader) <= 2 * 4
        assert len([*loader]) == 10


def test_a_part_that_fails_keeps_no_slot_of_the_others() -> None:
    with stoker.DataLoader(Failing(), 8, num_workers=2, seed=1, persistent_workers=True) as loader:
        for _ in range(12):
            with pytest.raises(ValueError, match="number 5"):
                next(iter(loader))
        gc.collect()
        iter(loader)
        assert lent(loader) <= 2 * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_sampler_is_its_own(workers: int) -> None:
    with (
        stoker.DataLoader(Numbers(), sampler=Until(), num_workers=workers, seed=1) as loader,
        pytest.raises(ValueError, match="no more numbers"),
    ):
        for _ in loader:
            pass


def test_an_endless_sampler_gives_batches() -> None:
    with stoker.DataLoader(Numbers(size=1), 4, sampler=Endless(), num_workers=1, seed=1) as loader:
        assert [batch.flatten().tolist() for batch in itertools.islice(loader, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("options", [{}, {"workers": "threads"}], ids=str)
def test_an_error_of_worker_init_fn_is_told_once(options: dict[str, Any]) -> None:
    def fail(worker: int) -> None:
        raise ValueError("not today")

    with stoker.DataLoader(Numbers(), 4, num_workers=1, seed=1, worker_init_fn=fail, **options) as loader:
        with pytest.raises(ValueError, match="not today") as raised:
            next(iter(loader))
        assert str(raised.value).count("Caught ValueError") == 1


def test_each_epoch_begins_with_the_first_worker() -> None:
    with stoker.DataLoader(Who(5), 1, num_workers=2, workers="threads", persistent_workers=True) as loader:
        for _ in range(3):
            assert [int(batch) for batch in loader] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("options", [{"seed": 1}, {}, {"workers": "threads"}], ids=str)
def test_an_iterator_that_the_collector_finds_does_no_harm(options: dict[str, Any]) -> None:
    with stoker.DataLoader(Numbers(), 4, num_workers=2, **options) as loader:
        for _ in range(3):
            cycle: list[Any] = [iter(loader)]
            next(cycle[0])
            cycle.append(cycle)
            del cycle
            gc.collect()
            assert len([*loader]) == 10


def test_a_dataset_goes_with_its_loader() -> None:
    dataset = Numbers()
    gone = weakref.ref(dataset)
    loader = stoker.DataLoader(dataset, 4, num_workers=2, workers="threads")
    assert len([*loader]) == 10
    gc.disable()
    try:
        del dataset, loader
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("options", [{"seed": 1}, {}], ids=str)
def test_a_forked_child_has_workers_of_its_own(options: dict[str, Any]) -> None:
    with stoker.DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True, **options) as loader:
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if not child:
            os._exit(len([*loader]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
        assert len([*batches]) == 9
