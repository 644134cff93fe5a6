"""What holds for every pool: a crew of processes or threads, with the exchange that its work comes by."""

import contextlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_MANY = 100
_LONG_S = 60.0
_CLOSED_WITHIN_S = 15.0
"""With room for a machine that is busy with something else: what takes longer would never have ended."""


class Recorded:
    """A dataset of numbers that writes down which of them were prepared, and in which process."""

    def __init__(self, folder: Path, length: int = _MANY, **unlike: int) -> None:
        self._path = folder / "prepared"
        self._path.touch()
        self._length = length
        self._unlike = {number: how for how, number in unlike.items()}
        """Numbers that `raises`, `dies` or `takes_long`."""

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> int:
        with self._path.open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        match self._unlike.get(number):
            case "raises":
                raise LookupError(f"number {number}")
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "takes_long":
                time.sleep(_LONG_S)
        return number

    def prepared(self) -> list[int]:
        """The numbers, in the order in which their preparation began."""
        return [int(line.split()[0]) for line in self._path.read_text().splitlines()]

    def processes(self) -> set[int]:
        """Where they were prepared."""
        return {int(line.split()[1]) for line in self._path.read_text().splitlines()}


class PoolContract:
    """What a crew with its exchange must do. Give `feed`, and inherit the tests."""

    ahead = 4
    """How many batches a worker may be ahead of the reader."""
    looks = 0
    """How many numbers are prepared only to see how that goes."""

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        """An iterable of a dataset's batches in order, iterated once for each epoch. It has `close()`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _fed(self, workers: int = 2, batch_size: int = 2, **unlike: int) -> Iterator[tuple[Any, Recorded]]:
        with tempfile.TemporaryDirectory() as folder:
            dataset = Recorded(Path(folder), **unlike)
            feed = self.feed(dataset, batch_size=batch_size, workers=workers)
            try:
                yield feed, dataset
            finally:
                feed.close()

    def test_every_number_comes_once_in_each_epoch(self) -> None:
        """And in the order of the dataset; each was prepared as often as there were epochs."""
        with self._fed() as (feed, dataset):
            for _ in range(3):
                assert _numbers(feed) == list(range(_MANY))
            assert sorted(dataset.prepared()) == sorted([*range(_MANY)] * 3 + [0] * self.looks)

    def test_one_worker_and_many_do_the_same(self) -> None:
        """Also if there are more workers than batches."""
        for workers, batch_size in ((1, 7), (2, 7), (2, _MANY)):
            with self._fed(workers, batch_size) as (feed, _):
                assert _numbers(feed) == list(range(_MANY))

    def test_an_epoch_that_is_left_takes_nothing_from_the_next(self) -> None:
        """What was prepared for it is not given to anybody."""
        with self._fed() as (feed, _):
            for left_after in (1, 7, 3):
                assert _numbers(itertools.islice(feed, left_after)) == list(range(2 * left_after))
            assert _numbers(feed) == list(range(_MANY))

    def test_an_error_is_raised_in_its_place(self) -> None:
        """With its own type; the batches before it came, and those after it follow."""
        with self._fed(raises=21) as (feed, _):
            batches = iter(feed)
            assert _numbers(itertools.islice(batches, 10)) == list(range(20))
            assert "number 21" in _raised(LookupError, batches)
            assert _numbers(batches) == list(range(22, _MANY))

    def test_a_reader_that_waits_is_not_run_away_from(self) -> None:
        """Workers stop when they are `ahead` batches ahead of the reader."""
        with self._fed() as (feed, dataset):
            batches = iter(feed)
            next(batches)
            prepared = -1
            while prepared != (prepared := len(dataset.prepared())):
                time.sleep(0.5)
            assert prepared <= 2 * (2 * self.ahead + 1) + self.looks
            assert _numbers(batches) == list(range(2, _MANY))

    def test_close_in_the_middle_of_an_epoch(self) -> None:
        """Takes no longer than it may, and the next epoch is whole."""
        with self._fed() as (feed, _):
            next(iter(feed))
            began = time.monotonic()
            feed.close()
            assert time.monotonic() - began < _CLOSED_WITHIN_S
            assert _numbers(feed) == list(range(_MANY))


class ProcessPoolContract(PoolContract):
    """The same for workers that are processes: they can be killed and stopped from outside."""

    def test_a_death_is_noticed(self) -> None:
        """The reader is told by which signal, and does not wait."""
        with self._fed(dies=40) as (feed, _):
            assert "SIGKILL" in _raised(RuntimeError, iter(feed))

    def test_close_does_not_wait_for_workers_that_do_not_end(self) -> None:
        """Also when workers are busy with something that takes a minute, or were stopped by a signal."""
        for stopped in (False, True):
            with self._fed(takes_long=13) as (feed, dataset):
                batches = iter(feed)
                next(batches)
                while 13 not in dataset.prepared():
                    time.sleep(0.01)
                workers = dataset.processes() - {os.getpid()}
                for pid in workers if stopped else ():
                    os.kill(pid, signal.SIGSTOP)
                began = time.monotonic()
                feed.close()
                assert time.monotonic() - began < _CLOSED_WITHIN_S
                assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def _numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in _listed(batch)]


def _listed(batch: Any) -> Sequence[Any]:
    return batch.tolist()  # type: ignore[no-any-return]


def _raised(kind: type[Exception], batches: Iterator[Any]) -> str:
    """What the next error says."""
    try:
        for _ in batches:
            pass
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
