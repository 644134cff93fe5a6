"""A loader in a group: its seat, its workers, and the iterator that copies what the group has staged."""

import errno
import hashlib
import os
import queue
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.data.dataloader as torch_dataloader
from torch.utils.data._utils import pin_memory

from stoker.errors import ConfigError
from stoker.host.cores import usable_cores
from stoker.memory import PrivateMemory
from stoker.stage.area import Area
from stoker.stage.door import check_name, no_room
from stoker.stage.group import GroupStats, Seat, Wait
from stoker.stage.outbox import Outbox
from stoker.stage.records import Batch as Staged
from stoker.stage.staging import default_bytes
from stoker.torch.carrier import Instead, MapIter, how_it_ended
from stoker.torch.course import recognise
from stoker.torch.likeness import describe, differences
from stoker.torch.preparing import Preparing, Told, Work, opened, told_of
from stoker.torch.publishing import script_name
from stoker.torch.threads import end_at_exit
from stoker.torch.transport import let_go_on
from stoker.torch.worker import are_forked
from stoker.units import parse_bytes

_END_S = 5.0
_TELL_AFTER_S = 30.0


def check(loader: Any, dataset: Any) -> None:
    """Refuse options that mean nothing."""
    check_name(loader.group)
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise ConfigError("group= needs a map-style dataset: a stream is not the same for every job")
    if loader.group_bytes is not None:
        loader.group_bytes = parse_bytes(loader.group_bytes, "group_bytes")
    if loader.group_patience_s is not None and not loader.group_patience_s > 0:
        raise ConfigError(f"group_patience_s must be a number of seconds above 0, not {loader.group_patience_s!r}")


class Membership:
    """What a loader has to do with its group, in one process."""

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
        self._pool: _Pool | None = None
        self._preparing: Preparing | None = None
        self.reading: object = None
        """Stands for the iterator that reads now."""

    def preparing(self, loader: Any) -> Preparing:
        """How its batches are made, in this process."""
        if self._preparing is None:
            threads = loader.workers == "threads" and loader.num_workers > 0
            self._preparing = Preparing(loader, recognise(loader, loader.seed), threads=threads)
        return self._preparing

    def start(self, loader: Any) -> None:
        """Have its workers at work."""
        if self._pool is None and loader.num_workers:
            preparing = self.preparing(loader)
            try:
                self._pool = _Pool(loader, self.seat, preparing)
            except OSError as error:
                if error.errno != errno.ENOSPC:  # for Python's semaphores, which are in /dev/shm
                    raise
                raise no_room(loader.group) from None

    def check(self) -> None:
        """Raise what its workers could not tell otherwise."""
        if self._pool is not None:
            self._pool.check()

    def close(self) -> None:
        """Leave the group."""
        if self._pool is not None and self.seat.is_ours:
            self._pool.wake()
            self.seat.retire()
            self._pool.end()
        self.seat.close()

    def stats(self) -> GroupStats | None:
        """The group as it is now."""
        return self.seat.stats() if self.seat.is_ours else None


class _Pool:
    """The workers of a member: they live until it leaves."""

    def __init__(self, loader: Any, seat: Seat, preparing: Preparing) -> None:
        self._stopped = threading.Event()
        self._processes: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._failures: Any = queue.SimpleQueue()
        if loader.workers == "threads":
            work = Work(seat.address, preparing, loader, self._failures, forked=False)
            for number in range(loader.num_workers):
                arguments = (number, seat.staging, self._stopped.is_set)
                name = f"stoker-worker-{number}"
                self._threads.append(threading.Thread(target=work.in_thread, args=arguments, name=name, daemon=True))
                self._threads[-1].start()
                end_at_exit(self._threads[-1], self._stopped.set)
            return
        context = loader.multiprocessing_context or torch.multiprocessing
        self._failures = context.SimpleQueue()
        work = Work(seat.address, preparing, loader, self._failures, forked=are_forked(context))
        is_free = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            if is_free:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            for number in range(loader.num_workers):
                worker = context.Process(target=work, args=(number,), daemon=True)
                worker.start()
                self._processes.append(worker)
        finally:
            if is_free:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def check(self) -> None:
        if not self._failures.empty():
            content, message = self._failures.get()
            opened(Told(None, None, 0, 0.0, None, (content, message)), np.empty(0, np.uint8))
        ends = [worker for worker in self._processes if worker.exitcode is not None]
        if ends:
            pids = ", ".join(str(worker.pid) for worker in ends)
            how = ", ".join(how_it_ended(worker.pid, worker.exitcode) for worker in ends)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly [{how}]")

    def wake(self) -> None:
        """Let those go on that a signal has stopped: they may hold what others need."""
        let_go_on(self._processes)

    def end(self) -> None:
        """When they are done with the batch that they are at, or soon."""
        self._stopped.set()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:  # a signal handler may have interrupted what they wait for
            thread.join(max(0.0, deadline - time.monotonic()))
        for worker in self._processes:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.terminate()
                worker.join(_END_S)
                worker.kill()  # a debugger has stopped it, perhaps
                worker.join()


class GroupIter(MapIter, torch_dataloader._BaseDataLoaderIter):
    """One epoch of the group, batch by batch, each a copy of this job's own."""

    def __init__(self, loader: Any, membership: Membership) -> None:
        self._watch(loader)
        self._loader = loader
        self._membership = membership
        self._route = recognise(loader, loader.seed)
        self._has_begun = False
        self._turn = object()
        self._told = False
        super().__init__(Instead(loader, generator=torch.Generator()))  # type: ignore[arg-type]
        self._meter.workers, self._meter.group = loader.num_workers, loader.group
        look = weakref.WeakMethod(self._look)  # an iterator that nobody has any more must not hold itself
        self._wait = Wait(
            not loader.num_workers, loader.group_patience_s, lambda *late: method(*late) if (method := look()) else None
        )
        self._patience_s = loader.timeout

    def _begin(self) -> None:
        """When the first batch is asked for: torch makes iterators that it does not use."""
        self._has_begun = True
        member, progress = self._membership, self._progress
        member.start(self._loader)
        progress.begin(self._route)
        epoch, step = member.seat.begin()
        member.reading = self._turn
        if step != progress.batches:
            progress.samples = progress.batches = 0
        progress.epoch = epoch

    def _obtain(self) -> Any:
        member = self._membership
        if not member.seat.is_ours:
            raise RuntimeError("the loader was closed, or this process is not the one that iterates it: call iter() again")
        if not self._has_begun:
            self._begin()
        if member.reading is not self._turn:
            raise RuntimeError("another iter() of this loader has begun; in a group one goes on at a time")
        member.check()
        while True:
            with member.seat.batch(self._wait) as got:
                if got is None:
                    member.reading = None
                    raise StopIteration
                own = self._copy(member.seat, got) if isinstance(got, Staged) else None
            if isinstance(got, Staged):
                return self._open(member.seat, got, own)
            with self._caching.active():
                member.preparing(self._loader).answer(got, member.seat.staging)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """An epoch that is left: nobody shall wait for the rest of it."""
        member = getattr(self, "_membership", None)
        if member is not None and member.reading is self._turn and not ending():
            member.reading = None
            member.seat.rest()

    def _copy(self, seat: Seat, staged: Staged) -> Any:
        room = _room_of(self._loader)
        if room.claim():
            _, own = room.room(staged.used)
            room.abandon()
        else:  # the user keeps many batches
            own = np.empty(staged.used, np.uint8)
        seat.staging.copy(staged, own)
        return own

    def _open(self, seat: Seat, staged: Staged, own: Any) -> Any:
        told = told_of(own)
        self._arrived = told.samples
        if staged.member == seat.address.member:
            self._meter.prep_s += told.prep_s
            if told.counts is not None:
                self._meter.add(told.counts)
        batch = opened(told, own)
        return pin_memory.pin_memory(batch) if self._pin_memory else batch

    def _saw(self) -> None:
        self._progress.saw(self._arrived * self._route.world)

    def _look(self, who: str, pid: int, waited_s: float) -> None:
        """While waiting."""
        self._membership.check()
        if self._record is not None:
            self._record.late(self._meter.batches, pid)
        if self._patience_s and waited_s > self._patience_s:
            raise RuntimeError(f"DataLoader timed out after {self._patience_s} seconds, waiting for {who}")
        if waited_s > _TELL_AFTER_S and not self._told:
            self._told = True
            warnings.warn(
                f"waiting for {waited_s:.0f} s for {who}, in the group {self._loader.group!r}. A limit after which the "
                "others go on without it is group_patience_s.",
                stacklevel=2,
            )


def _room_of(loader: Any) -> Outbox:
    """Memory for this job's copies, which is used again when nobody looks at a batch any more."""
    room: Outbox | None = loader.__dict__.get("_room")
    if room is None:
        room = loader.__dict__["_room"] = Outbox(Area(1, 2, memory=PrivateMemory()), 0)
    return room


def _seed_of(name: str) -> int:
    """The seed of a group that was given none: by its name, so that a search that is started again is the same search."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def _rank_of(loader: Any) -> int:
    """Which of the processes of one job: each has samples of its own, and shares them with its like in other jobs."""
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
