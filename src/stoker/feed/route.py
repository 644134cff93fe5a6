"""The way of one process through an epoch when the loader has a seed: which samples, at which positions, in which batches.

A `Route` is recognised from the loader's samplers. `EpochWorks` turns the route's batches into orders for workers, and
remembers each order until its batch has arrived.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from stoker.cache.steering import Steering
from stoker.errors import ConfigError
from stoker.feed.progress import (
    Batch,
    KnownRoute,
    Progress,
    counting_sampler,
    generator_text,
    index_sampler,
    is_batched,
    own_generator,
    set_generator,
)
from stoker.order import Drawn, Ids, length_of, mix, pad, share
from stoker.pool.work import NOT_COMMON, Part, Work, listed
from stoker.tensor.seeding import generators_restored, seed_generators

_SAMPLER = 1 << 61
"""Stands for a position where a sampler of the user draws: apart from those of all samples."""
_ENDLESS = 4
"""A sampler that gives so many times what its length says has no end."""


def recognise(loader: Any, seed: int) -> KnownRoute:
    """Find the route that a loader's samplers describe."""
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    if batch_sampler is None or type(batch_sampler) is BatchSampler:
        size = 1 if batch_sampler is None else batch_sampler.batch_size
        drop_last = batch_sampler is not None and batch_sampler.drop_last
        if batch_sampler is None or batch_sampler.sampler is sampler:
            if type(sampler) is SequentialSampler or _is_plain_shuffle(sampler):
                return _Whole(Drawn(len(sampler), seed, type(sampler) is RandomSampler), size, drop_last)
            if type(sampler) is DistributedSampler:
                return _Distributed(sampler, size, drop_last)
    return _OfSampler(loader, seed)


def _is_plain_shuffle(sampler: Any) -> bool:
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.generator is None
        and sampler.num_samples == len(sampler.data_source)
    )


class _Cut(Sequence[Batch]):
    """Samples in their order, cut into batches."""

    def __init__(self, ids: Ids, first: int, step: int, size: int, drop_last: bool) -> None:
        self.ids = ids
        self._first, self._step, self._size = first, step, size
        self._length = len(ids) // size if drop_last else -(-len(ids) // size)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self._length:
            raise IndexError(number)
        start = number * self._size
        return Batch(self._first + self._step * start, self._step, self.ids[start : start + self._size])


class _Whole:
    """One process takes all samples."""

    world = 1
    is_plain = True
    has_own_generator = False

    def __init__(self, order: Drawn, size: int, drop_last: bool) -> None:
        self.order, self.size, self.drop_last = order, size, drop_last

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "drawn",
            "samples": self.order.samples,
            "shuffle": self.order.shuffle,
            "batch": self.size,
            "drop_last": self.drop_last,
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass

    def own(self, epoch: int) -> Ids:
        return self.order.epoch(epoch)

    def batches(self, epoch: int, consumed: int) -> Iterator[Batch]:
        return iter(_Cut(self.order.epoch(epoch)[consumed:], consumed, 1, self.size, self.drop_last))

    def at(self, epoch: int) -> Sequence[Batch]:
        return _Cut(self.order.epoch(epoch), 0, 1, self.size, self.drop_last)


class _Distributed:
    """torch's DistributedSampler, index for index."""

    is_plain = True
    has_own_generator = False

    def __init__(self, sampler: Any, size: int, drop_last: bool) -> None:
        self.sampler, self.size, self.drop_last = sampler, size, drop_last
        self.world = int(sampler.num_replicas)
        self._epoch = 0

    def describe(self) -> dict[str, Any]:
        sampler = self.sampler
        return {
            "kind": "distributed",
            "samples": len(sampler.dataset),
            "shuffle": sampler.shuffle,
            "sampler_seed": sampler.seed,
            "sampler_drop_last": sampler.drop_last,
            "drop_last": self.drop_last,
        }

    def state(self) -> dict[str, Any]:
        return {"sampler_epoch": self.sampler.epoch}

    def restore(self, state: dict[str, Any]) -> None:
        self.sampler.set_epoch(state["sampler_epoch"])

    def own(self, epoch: int) -> Ids:
        # The sampler has an epoch of its own. Assume that the script raises it by one for each epoch after this one.
        return self._share(self.sampler.epoch + epoch - self._epoch, 0)

    def batches(self, epoch: int, consumed: int) -> Iterator[Batch]:
        self._epoch = epoch
        own, first = self._share(self.sampler.epoch, consumed), consumed + self.sampler.rank
        return iter(_Cut(own, first, self.world, self.size, self.drop_last))

    def at(self, epoch: int) -> Sequence[Batch]:
        return _Cut(self._share(epoch, 0), self.sampler.rank, self.world, self.size, self.drop_last)

    def _share(self, sampler_epoch: int, consumed: int) -> Ids:
        ids = distributed_ids(self.sampler, sampler_epoch, consumed)
        return np.ascontiguousarray(share(ids, self.sampler.rank, self.world))


def distributed_ids(sampler: Any, sampler_epoch: int, consumed: int = 0) -> Ids:
    """What is left of an epoch of torch's DistributedSampler, for all processes: each takes its share of it."""
    count = len(sampler.dataset)
    if sampler.shuffle:
        generator = torch.Generator().manual_seed(sampler.seed + sampler_epoch)
        ids: Ids = torch.randperm(count, generator=generator).numpy()
    else:
        ids = np.arange(count, dtype=np.int64)
    # With another number of processes the padding differs, but the remaining samples are the same.
    return pad(ids, int(sampler.num_replicas), drop_last=sampler.drop_last, consumed=consumed)


class _OfSampler:
    """The indices that a sampler of the user gives, drawn under the loader's seed."""

    world = 1
    is_plain = False

    def __init__(self, loader: Any, seed: int) -> None:
        self.index_sampler = index_sampler(loader)
        self.batched = is_batched(loader)
        self.seed = seed
        self.generator = own_generator(loader)
        self.has_own_generator = self.generator is not None
        # Accelerate shards one order: each process has a part of it, and no two processes share a position.
        self.offset = int(getattr(self.index_sampler, "process_index", 0)) << 48
        self.counting = counting_sampler(loader)

    def describe(self) -> dict[str, Any]:
        samplers = [self.index_sampler, getattr(self.index_sampler, "sampler", None)]
        return {"kind": "recorded", "sampler": " of ".join(type(s).__name__ for s in samplers if s is not None)}

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {} if self.generator is None else {"generator": generator_text(self.generator)}
        return state if self.counting is None else state | {"sampler_epoch": self.counting.epoch}

    def restore(self, state: dict[str, Any]) -> None:
        if self.generator is not None and "generator" in state:
            set_generator(self.generator, state["generator"])
        if self.counting is not None and "sampler_epoch" in state:
            self.counting.set_epoch(state["sampler_epoch"])

    def batches(self, epoch: int, consumed: int) -> Iterator[Batch]:
        position = 0
        for ids in self._draw(epoch):
            if position >= consumed:
                yield Batch(self.offset + position, 1, ids)
            position += len(ids)

    def at(self, epoch: int) -> Sequence[Batch]:
        length = length_of(self.index_sampler)
        if length is None:
            raise ConfigError("a sampler without a length may never end: it cannot be shared by a group")
        most = _ENDLESS * (length + 1)
        batches = list(itertools.islice(self.batches(epoch, 0), most))
        if len(batches) == most:
            raise ConfigError(f"a sampler that says {length} and does not end cannot be shared by a group")
        return batches

    own = None

    def _draw(self, epoch: int) -> Iterator[Sequence[Any]]:
        length = length_of(self.index_sampler)
        with generators_restored():
            seed_generators(mix(self.seed, epoch, _SAMPLER))
            iterator = iter(self.index_sampler)
            # One more than it says, so that its end is reached. A sampler with a length may have no end all the same.
            known = 0 if length is None else length + 1
            whole = [self._ids(index) for index in itertools.islice(iterator, known)]
            states = torch.get_rng_state()
        yield from whole
        if len(whole) < known:
            return
        while True:  # perhaps without an end: one by one, each time where the sampler left its generator
            with generators_restored():
                torch.set_rng_state(states)
                try:
                    ids = self._ids(next(iterator))
                except StopIteration:
                    return
                states = torch.get_rng_state()
            yield ids

    def _ids(self, index: Any) -> Sequence[Any]:
        return list(index) if self.batched else [index]


class Ordered(NamedTuple):
    """A batch that was ordered and has not arrived."""

    work: Work
    """The work of the whole batch, not of a part."""
    parts: int
    samples: int
    """Samples in the batches of all processes together."""
    common: int
    """The slot that workers fill together, or NOT_COMMON."""


class EpochWorks:
    """The works of one epoch, for workers to take in turn.

    The first batch, and those at the end that would leave workers without any, are ordered in parts, one for each worker.
    Where workers have no slot in common for them, the samples are collated when all have arrived.
    """

    def __init__(self, route: KnownRoute, progress: Progress, workers: int, *, split: bool) -> None:
        self._route = route
        self._progress = progress
        self._workers = workers
        self._split = split and workers > 1
        self.ordered: deque[Ordered] = deque()
        """The batches that are under way."""
        self.claim_common: Callable[[], int] = lambda: NOT_COMMON
        self.free_common: Callable[[int], None] = lambda slot: None
        self.steering: Steering | None = None
        """Decides what a cache keeps, if that is not left to the cache."""

    def __len__(self) -> int:
        raise TypeError("works of an epoch have no length")

    def __iter__(self) -> Iterator[Work]:
        """Start the epoch only when the first work is asked for: torch makes iterators that it does not use."""
        while self.ordered:  # of an epoch that was left early
            self.forget(self.ordered.popleft())
        epoch, consumed = self._progress.begin(self._route)
        batches = self._route.batches(epoch, consumed)
        if self.steering is not None:
            self.steering.begin(epoch, consumed // self._route.world)
        yield from self._works(epoch, batches)

    def forget(self, batch: Ordered) -> None:
        """Free the common slot of a batch that nobody will open and no worker is filling."""
        if batch.common != NOT_COMMON:
            self.free_common(batch.common)

    def _works(self, epoch: int, batches: Iterator[Batch]) -> Iterator[Work]:
        number = 0
        window: deque[Batch] = deque()
        for batch in batches:
            window.append(batch)
            if len(window) > self._workers:
                yield from self._order(epoch, window.popleft(), split=number == 0)
                number += 1
        # The last round: batches beyond a whole number of rounds are split among all workers.
        left_over = (number + len(window)) % self._workers if self._workers else 0
        while window:
            yield from self._order(epoch, window.popleft(), split=number == 0 or len(window) < left_over)
            number += 1

    def _order(self, epoch: int, batch: Batch, *, split: bool) -> Iterator[Work]:
        first, step, ids = batch
        parts = min(self._workers, len(ids) // 2) if split and self._split else 1
        common = self.claim_common() if parts > 1 else NOT_COMMON
        whole = Work(epoch, first, step, ids)
        self.ordered.append(Ordered(whole, max(1, parts), len(ids) * self._route.world, common))
        if parts <= 1:
            yield whole if self.steering is None else whole._replace(decision=self.steering.decide(listed(ids)))
            return
        bounds = [len(ids) * number // parts for number in range(parts + 1)]
        for start, stop in itertools.pairwise(bounds):
            own = ids[start:stop]
            decision = None if self.steering is None else self.steering.decide(listed(own))
            yield Work(epoch, first + step * start, step, own, Part(common, start, len(ids)), decision)
