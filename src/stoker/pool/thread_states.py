"""Worker threads whose dataset is a stream, or has a state: each has a copy of the dataset, as a worker process has."""

import copy
import pickle
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch.utils.data

from stoker.cache.notes import noted
from stoker.errors import ConfigError
from stoker.internals.names import DatasetKind, WorkerInfo
from stoker.meter import now
from stoker.pool.huggingface import shared_epoch
from stoker.pool.maker import CountingCollate, Room
from stoker.pool.serving import Duty
from stoker.pool.shards import for_one_epoch
from stoker.pool.start import StreamStart
from stoker.pool.stateful import (
    INLINE_BYTES,
    Asks,
    Fetching,
    is_stateful,
    restore_dataset,
    restore_iterator,
    say_passed,
)
from stoker.pool.work import Made, Report, Work

ONLY_BEGIN: Sequence[Any] = [object()]
"""In the place of indices: a worker that gets no batch of an epoch tells how it begins, too."""
Tell = Callable[[str, int, int, Any], None]
"""Tells how a worker begins or ended: what, its number, its epoch, the state."""


def copies_of(dataset: Any, workers: int) -> list[Any]:
    """A dataset for each worker."""
    try:
        return [copy.deepcopy(dataset, shared_epoch(dataset)) for _ in range(workers)]
    except Exception as error:
        raise ConfigError(
            f"workers='threads': each thread needs a dataset of its own, and copy.deepcopy() of {type(dataset).__name__} "
            f"fails: {error}. Open what cannot be copied in __iter__, or use workers='processes'"
        ) from error


@dataclass(frozen=True)
class OwnDuty(Duty):
    """What such threads are told."""

    copies: Sequence[Any] = ()
    tell: Tell | None = None

    def info(self, worker: int) -> Any:
        """What `get_worker_info()` gives in a worker."""
        seed = self.base_seed + worker
        return WorkerInfo(id=worker, num_workers=self.workers, seed=seed, dataset=self.copies[worker])

    def begin(self, worker: int, where: str) -> Any:
        """Call the user's `worker_init_fn`, and return a maker. If that fails, every batch raises its error."""
        maker = super().begin(worker, where)
        return maker if isinstance(maker, StatefulMaker) else _NotBegun(maker, self.tell, worker)


class _NotBegun:
    """The maker of a thread that could not begin: it has no state to tell, and says so."""

    def __init__(self, failing: Any, tell: Tell | None, worker: int) -> None:
        self._failing, self._tell, self._worker = failing, tell, worker

    def make(self, work: Work, room: Room) -> Any:
        """The error with which this worker failed to begin."""
        if self._tell is not None:
            self._tell(Report.BEGUN, self._worker, work.epoch, None)
        return self._failing.make(work, room)


@dataclass(frozen=True)
class Making:
    """What the makers of all such threads have in common. A thread calls it once, for its own."""

    collate_fn: Callable[[Any], Any]
    batched: bool
    batch_size: int | None
    drop_last: bool
    starts: Sequence[StreamStart]
    every: int
    tell: Tell

    def __call__(self) -> "StatefulMaker":
        """A maker for the worker thread that calls this."""
        return StatefulMaker(self, torch.utils.data.get_worker_info())


class StatefulMaker:
    """Makes the batches of one thread, and tells the state of its dataset. The epoch of a work says when to begin anew."""

    def __init__(self, common: Making, info: Any) -> None:
        self._common = common
        self._dataset, self._number = info.dataset, info.id
        self._kind = DatasetKind.Iterable if isinstance(info.dataset, torch.utils.data.IterableDataset) else DatasetKind.Map
        self._writer = HereStateWriter()
        self._epoch = 0
        self._batches: _IntoRoom | None = None
        self._fetching: Any = None

    def make(self, work: Work, room: Room) -> Made:
        """Prepare the samples of a work and put the batch into a room. What is made after the end says so."""
        if work.epoch != self._epoch:
            self._begin(work.epoch)
        if self._batches is None or work.ids is ONLY_BEGIN:
            return Made(0, now(), 0.0, None, rest=Report.ENDED)
        self._batches.room = room
        try:
            made: Made = self._fetching.fetch(work.ids if self._kind == DatasetKind.Iterable else noted(work.ids))
        except StopIteration:
            self._batches = None
            return Made(0, now(), 0.0, None, rest=Report.ENDED)
        return made

    def _begin(self, epoch: int) -> None:
        common, self._epoch, self._batches = self._common, epoch, None
        start = copy.deepcopy(common.starts[self._number]) if common.starts and epoch == 1 else StreamStart()
        tell = partial(_tell, common.tell, self._number, epoch)
        try:
            dataset, start = for_one_epoch(self._dataset, start)
            restore_dataset(dataset, start)
            collate = CountingCollate(common.collate_fn, batched=common.batched, batch_size=common.batch_size)
            fetcher = DatasetKind.create_fetcher(self._kind, dataset, common.batched, collate, common.drop_last)
            restore_iterator(fetcher, start, say_passed(f"worker thread {self._number}"))
        except Exception:
            tell(Report.BEGUN, None)  # the error itself takes the place of a batch
            raise
        self._batches = self._fetching = _IntoRoom(fetcher, collate)
        if is_stateful(dataset) or is_stateful(getattr(fetcher, "dataset_iter", None)):
            every = common.every if self._kind == DatasetKind.Iterable else 1
            self._fetching = Fetching(self._batches, self._writer, tell, every)
        else:
            tell(Report.BEGUN, None)


def _tell(tell: Tell, number: int, epoch: int, what: str, state: Any) -> None:
    tell(what, number, epoch, state)


class _IntoRoom:
    """A fetcher whose batches are put into a room."""

    room: Room

    def __init__(self, fetcher: Any, collate: CountingCollate) -> None:
        self._fetcher = fetcher
        self._collate = collate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, indices: Any) -> Made:
        """Make a batch."""
        made = self.room.put(partial(self._fetcher.fetch, indices), 1)
        return made._replace(samples=self._collate.samples)


class HereStateWriter:
    """Writes states for the training loop of the same process: it gets them as they were when they were asked for.

    While the loop holds two large ones it gets no further one.
    """

    def __init__(self) -> None:
        self._last = b""
        self._held: list[weakref.ref[Any]] = []

    def forget(self) -> None:
        """Write the next state even if it is like the last one."""
        self._last = b""

    def write(self, asks: Asks, *, has_ended: bool) -> tuple[Any, ...] | None:
        """A state as plain values, or None where there is no room for it: then nobody is asked."""
        self._held = [held for held in self._held if held() is not None]
        if len(self._held) > 1:
            return None
        content = pickle.dumps(tuple(asks()), 5)
        if len(content) > INLINE_BYTES:
            large = np.frombuffer(content, np.uint8)
            self._held.append(weakref.ref(large))
            return has_ended, large
        if content == self._last:
            return (has_ended,)
        self._last = content
        return has_ended, content
