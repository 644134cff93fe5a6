"""Makers turn work into batches, in any process or thread.

A room is where batches are put: slots that the training process opens, or memory of this process. A maker prepares the
samples of a work, straight into the room where that is faster, and the room says how the batch is handed over.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch.utils.data

from stoker.cache.notes import noted
from stoker.internals.names import DatasetKind
from stoker.pool.work import NOT_COMMON, AsItIs, Made, Work
from stoker.slots.outbox import Outbox
from stoker.tensor.dataset import advised
from stoker.tensor.leaves import HereCollate, collates_as_torch
from stoker.tensor.rows import are_large, stack
from stoker.tensor.seeding import Positions


class Room(Protocol):
    """Where batches are put."""

    @property
    def outbox(self) -> Outbox | None:
        """If there is an outbox, one of its slots is claimed while a batch is made. Samples may go into it one by one."""

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Make a batch of so many samples in a slot of this room, or in a slot that several workers fill."""


class Maker(Protocol):
    """Turns work into batches."""

    def make(self, work: Work, room: Room) -> Made:
        """Prepare the samples of a work and put the batch into a room."""


class PositionMaker:
    """The maker with a seed: randomness belongs to positions. Parts of a batch that cannot go into rows stay lists."""

    def __init__(self, positions: Positions, collate_fn: Callable[[Any], Any], *, batched: bool, stacks: bool) -> None:
        self.positions = positions
        self.collate_fn = collate_fn
        self.batched = batched
        self.stacks = stacks and batched
        """Whether `collate_fn` is torch's, so that samples can go into their rows by themselves."""
        self.large: bool | None = None
        """Whether samples are so large that it pays, once one was seen."""

    def make(self, work: Work, room: Room) -> Made:
        """Prepare the samples of a work and put the batch into a room."""
        ids = noted(work.indices)
        slot = NOT_COMMON if work.part is None else work.part.slot
        with nullcontext() if work.decision is None else advised(work.decision):
            made = room.put(partial(self._content, work, ids, room), len(ids) if self.batched else 1, slot)
        return made._replace(draws=True) if self.positions.draws else made

    def _content(self, work: Work, ids: Sequence[Any], room: Room) -> Any:
        outbox = room.outbox
        make = partial(self.positions.make, work.epoch, work.first, work.step, ids)
        if not self.stacks or outbox is None or not outbox.claimed:
            return make(self.collate if work.part is None else list)
        if work.part is not None:
            if work.part.slot == NOT_COMMON:
                return make(list)
            own = range(work.part.start, work.part.start + len(ids))
            return make(partial(stack, own=own, total=work.part.total, outbox=outbox, collate=list))
        if not self.large:
            return make(self.collate)
        whole = range(len(ids))
        return make(partial(stack, own=whole, total=len(ids), outbox=outbox, collate=self.collate_fn))

    def collate(self, samples: Iterable[Any]) -> Any:
        """Collate samples the usual way."""
        whole = list(samples)
        if self.large is None:
            self.large = self.stacks and are_large(whole[0])
        return self.collate_fn(whole if self.batched else whole[0])

    def remake(self, work: Work) -> Any:
        """Prepare a whole batch again, in this process."""
        return self.positions.make(work.epoch, work.first, work.step, work.indices, self.collate)

    def merge(self, work: Work, samples: list[Any]) -> Any:
        """Collate a batch that was prepared in parts."""
        return self.positions.collate(work.epoch, work.first, samples, self.collate)


class CountingCollate:
    """The user's `collate_fn`, and how many samples it was given last."""

    def __init__(self, collate_fn: Callable[[Any], Any], *, batched: bool, batch_size: int | None = None) -> None:
        self.collate_fn = collate_fn
        self.batched = batched
        self.batch_size = batch_size
        self.samples = 0

    def __call__(self, samples: Any) -> Any:
        """Collate, and count."""
        self.samples = count_samples(samples) if self.batched else 1
        return self.collate_fn(samples)


class FetchMaker:
    """Without a seed: what torch's fetcher does, for one worker."""

    def __init__(
        self, fetcher: Callable[[Callable[[Any], Any]], Any], collate_fn: Callable[[Any], Any], *, batched: bool
    ) -> None:
        self._collate = CountingCollate(collate_fn, batched=batched)
        self._fetcher = fetcher(self._collate)

    def make(self, work: Work, room: Room) -> Made:
        """Prepare the samples of a work and put the batch into a room."""
        ids = work.ids.view(np.ndarray) if type(work.ids) is AsItIs else noted(work.ids)
        made = room.put(partial(self._fetcher.fetch, ids), 1)
        return made._replace(samples=self._collate.samples)


def fetching(dataset: Any, collate_fn: Callable[[Any], Any], *, batched: bool, drop_last: bool) -> FetchMaker:
    """A maker without a seed for one worker, where it is going to work. It does what torch's fetcher does."""

    def fetcher(collate: Callable[[Any], Any]) -> Any:
        return DatasetKind.create_fetcher(DatasetKind.Map, dataset, batched, collate, drop_last)

    return FetchMaker(fetcher, collate_fn, batched=batched)


def count_samples(samples: Any) -> int:
    """The number of samples in a batch; 1 for a batch of the dataset's own that has no length."""
    try:
        return len(samples)
    except TypeError:
        return 1


def stacks(collate_fn: Callable[[Any], Any]) -> bool:
    """Whether a collate function is torch's default, unchanged by the user."""
    is_torchs = collate_fn is torch.utils.data.default_collate or isinstance(collate_fn, HereCollate)
    return is_torchs and collates_as_torch()
