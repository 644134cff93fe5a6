"""A loader in a group: its seat, its workers, and the iterator that copies what the group has staged."""

import errno
import hashlib
import os
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from stoker.errors import ConfigError
from stoker.feed import sharing
from stoker.feed.carrier import MapIter
from stoker.feed.likeness import describe, differences
from stoker.feed.progress import is_batched
from stoker.feed.publishing import script_name
from stoker.feed.route import recognise
from stoker.group.answers import EpochOver, Task
from stoker.group.door import no_room
from stoker.group.records import Point, StagedBatch
from stoker.group.seat import GroupStats, Patience, Seat
from stoker.group.staging import default_bytes
from stoker.host.cores import usable_cores
from stoker.pool.crew import ProcessCrew, ThreadCrew
from stoker.pool.maker import Maker, PositionMaker
from stoker.pool.members import ProcessServing, ThreadServing, always, where
from stoker.pool.serving import Duty, do, itself
from stoker.pool.table import Orders, Samples, TableExchange, raise_portable, staged
from stoker.pool.worker import are_forked
from stoker.slots.context import interrupts_held
from stoker.tensor.seeding import Positions

_TELL_AFTER_S = 30.0


class Membership:
    """A loader's seat in its group, and its workers, in one process."""

    def __init__(self, loader: Any) -> None:
        seed = loader.seed if loader.seed is not None else _seed_of(loader.group)
        own = _describe(loader, seed)
        is_own = loader.seed is not None

        def misfits(theirs: dict[str, Any]) -> list[str]:
            found = [f"seed is {seed} here and {theirs['seed']} in the group"] if is_own and theirs["seed"] != seed else []
            return found + differences(own, theirs["loader"])

        budget = loader.group_bytes if loader.group_bytes is not None else default_bytes()
        world = recognise(loader, seed).world
        about = {"seed": seed, "rank": _rank_of(loader), "world": world, "loader": own}
        label = os.path.basename(script_name()) or "python"
        self.seat = Seat(loader.group, about, misfits, budget, label, usable_cores())
        loader.seed = self.seat.about["seed"]
        self._crew: ProcessCrew | ThreadCrew | None = None
        self._failures: Any = None
        self._here: tuple[Maker, TableExchange] | None = None
        self.reading: object = None
        """A token of the iterator that reads now."""

    def start(self, loader: Any) -> None:
        """Start this member's workers, unless they run already."""
        if self._crew is not None or not loader.num_workers:
            return
        threads = loader.workers == "threads"
        maker = partial(itself, _group_maker(loader, threads=threads))
        duty = Duty(loader.dataset, loader.worker_init_fn, loader.num_workers, loader.seed, maker)
        orders = Orders(recognise(loader, loader.seed).at)
        if threads:
            stopped = threading.Event()
            self._failures = queue.SimpleQueue()
            serving = ThreadServing(duty, self.seat.staging, orders, loader.caching, self._failures, stopped.is_set)

            def stop() -> None:
                self.seat.retire()
                stopped.set()

            self._crew = ThreadCrew(serving, loader.num_workers, stop)
            return
        context = loader.multiprocessing_context or torch.multiprocessing
        try:
            self._failures = context.SimpleQueue()
        except OSError as error:
            if error.errno != errno.ENOSPC:  # for Python's semaphores, which are in /dev/shm
                raise
            raise no_room(loader.group) from None
        work = ProcessServing(duty, self.seat.address, orders, loader.caching, self._failures, forked=are_forked(context))
        with interrupts_held():
            workers = [context.Process(target=work, args=(number,), daemon=True) for number in range(loader.num_workers)]
            for worker in workers:
                worker.start()
        self._crew = ProcessCrew(workers, self.seat.retire)

    def restore(self, point: Point) -> None:
        """Have the next `iter()` go on from a point."""
        self.seat.restore(point)
        self.reading = None

    def prepare(self, loader: Any, task: Task) -> None:
        """Do a task that this process has claimed, because it has no workers."""
        if self._here is None:
            orders = Orders(recognise(loader, loader.seed).at)
            exchange = TableExchange(self.seat.staging, orders, loader.caching, always)
            self._here = _group_maker(loader, threads=False), exchange
        maker, exchange = self._here
        given = exchange.work(task)
        if given is not None:
            do(maker, where(), exchange, exchange, *given)

    def check(self) -> None:
        """Raise the error of a worker that could not stage it."""
        if self._crew is None:
            return
        try:
            self._crew.check()
        finally:  # why it has ended, if it could say so
            if not self._failures.empty():
                raise_portable(self._failures.get())

    def close(self) -> None:
        """Leave the group."""
        if self._crew is not None and self.seat.is_ours:
            self._crew.close()  # before the table is asked: a worker that a signal has stopped may hold its lock
        self.seat.close()

    def stats(self) -> GroupStats | None:
        """The group as it is now."""
        return self.seat.stats() if self.seat.is_ours else None


def _group_maker(loader: Any, *, threads: bool) -> Maker:
    """A maker of batches for all jobs of a group."""
    # Datasets that never draw pay for seeding, too: finding out would mean preparing a sample twice.
    positions = Positions(loader.dataset, loader.seed, threads=threads, draws=True)
    collate = Samples if loader.collate_fn is torch.utils.data.default_collate else loader.collate_fn
    return PositionMaker(positions, collate, batched=is_batched(loader), stacks=False)


class GroupIter(MapIter):
    """One epoch of the group. This job gets its own copy of every batch."""

    def __init__(self, loader: Any, membership: Membership) -> None:
        super().__init__(loader)
        self._loader = loader
        self._membership = membership
        self._route = recognise(loader, loader.seed)
        self._has_begun = False
        self._token = object()
        self._told = False
        self._meter.workers, self._meter.group = loader.num_workers, loader.group
        look = weakref.WeakMethod(self._look)  # a group iterator keeps no reference to itself
        self._patience = Patience(
            not loader.num_workers, loader.group_patience_s, lambda *late: method(*late) if (method := look()) else None
        )
        self._timeout_s = loader.timeout
        sharing.job_of(loader)  # says why ranks keep their workers, if they are to share them

    def _begin(self) -> None:
        """Start the epoch only when the first batch is asked for: torch makes iterators that it does not use."""
        self._has_begun = True
        member, progress = self._membership, self._progress
        member.start(self._loader)
        progress.begin(self._route)
        epoch, step = member.seat.begin()
        member.reading = self._token
        if step != progress.batches:
            progress.samples = progress.batches = 0
        progress.epoch = epoch

    def _obtain(self) -> Any:
        member = self._membership
        if not member.seat.is_ours:
            raise RuntimeError("the loader was closed, or this process is not the one that iterates it: call iter() again")
        if not self._has_begun:
            self._begin()
        if member.reading is not self._token:
            raise RuntimeError("another iter() of this loader has begun, or a state was loaded: call iter() again")
        member.check()
        while True:
            with member.seat.turn(self._patience) as turn:
                own = self._copy(member.seat, turn) if isinstance(turn, StagedBatch) else None
            match turn:
                case StagedBatch():
                    return self._open(member.seat, turn, own)
                case EpochOver():
                    member.reading = None
                    raise StopIteration
                case task:
                    with self._caching.active():
                        member.prepare(self._loader, task)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Leave the epoch, so that other members do not wait for this one to read the rest."""
        member = getattr(self, "_membership", None)
        if member is not None and member.reading is self._token and not ending():
            member.reading = None
            member.seat.rest()

    def _copy(self, seat: Seat, got: StagedBatch) -> Any:
        room = self._loader.here.copies
        if room.claim():
            _, own = room.room(got.used)
            room.abandon()
        else:  # the user keeps many batches
            own = np.empty(got.used, np.uint8)
        seat.staging.copy(got, own)
        return own

    def _open(self, seat: Seat, got: StagedBatch, own: Any) -> Any:
        found = staged(own)
        made = found.made
        self._arrived = made.samples
        if got.member == seat.address.member:
            self._meter.prep_s += made.prep_s
            if made.counts is not None:
                self._meter.add(made.counts)
        batch = found.open()
        return self._pinned(batch)

    def _saw(self) -> None:
        self._progress.saw(self._arrived * self._route.world)

    def _look(self, who: str, pid: int, waited_s: float) -> None:
        """Called while waiting: raise errors of workers and the timeout, and warn after a while."""
        self._membership.check()
        if self._record is not None:
            self._record.late(self._meter.batches, pid)
        if self._timeout_s and waited_s > self._timeout_s:
            raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds, waiting for {who}")
        if waited_s > _TELL_AFTER_S and not self._told:
            self._told = True
            warnings.warn(
                f"waiting for {waited_s:.0f} s for {who}, in the group {self._loader.group!r}. A limit after which the "
                "others go on without it is group_patience_s.",
                stacklevel=2,
            )


def _seed_of(name: str) -> int:
    """The seed of a group without `seed=`. It follows from the name, so that a repeated search is the same search."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def _rank_of(loader: Any) -> int:
    """The rank of this process in its job. A rank shares its samples with the same rank of other jobs."""
    rank = getattr(loader.sampler, "rank", 0)
    return rank if isinstance(rank, int) else 0


def _describe(loader: Any, seed: int) -> dict[str, str]:
    route = recognise(loader, seed)
    if route.has_own_generator:
        raise ConfigError(
            "group= needs samplers without a generator of their own: it would be at another point in every job. Leave "
            "generator= out; the group's seed sets torch's default generator before the sampler draws."
        )
    found = {name: repr(value) for name, value in route.describe().items()}
    found |= {"batch": repr(loader.batch_size), "world": repr(route.world)}
    found |= {"dataset.length": repr(len(loader.dataset))}
    found |= describe(loader.dataset, "dataset") | describe(loader.collate_fn, "collate_fn")
    if not route.is_plain:
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        found |= describe(sampler, "sampler", known={id(loader.dataset)})
    return found
