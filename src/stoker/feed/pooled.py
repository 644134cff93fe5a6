"""Iterators over a pool, without a seed and with one: they order work ahead, and give batches in order, or as they arrive.

Work number i goes to worker i mod N, at most `prefetch_factor` each. What torch's iterator promises is kept here: errors of
the dataset are raised in the place of their batch, deaths and `timeout` have torch's words, `persistent_workers` stay.
With a seed, the works of an epoch say what is prepared, and a batch may be ordered in parts.
"""

import contextlib
import itertools
import os
import queue
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from stoker.feed import sharing
from stoker.feed.carrier import LOOK_AFTER_WORKERS_S, MapIter
from stoker.feed.refusing import refuse_in_children
from stoker.feed.route import EpochWorks
from stoker.meter import now
from stoker.pool.maker import PositionMaker
from stoker.pool.pool import Pool
from stoker.pool.serving import Result
from stoker.pool.work import COLLATE, AsItIs, Made, Work
from stoker.tensor.seeding import generators_restored


class PoolIter(MapIter):
    """`num_workers>0` without torch's worker loop. The user's sampler says what is in a batch."""

    _pool: Pool | None = None
    _is_over = False

    def __init__(self, loader: Any, start: Callable[["PoolIter"], Pool], *, indices: Any = None) -> None:
        self._owner = os.getpid()
        self._crew_size = workers = loader.num_workers
        self._load = [0] * workers
        """How many works each worker has."""
        self._sent = self._expected = 0
        self._helped = 0
        """Works that were ordered beyond what the own workers may have, because others help them."""
        self._latest = -1
        """The number of the work whose result was taken last."""
        self._due: dict[int, int] = {}
        """The worker of each work that is under way."""
        self._early: dict[int, Result] = {}
        """Results that arrived before their turn."""
        super().__init__(loader, indices=indices, draws_seed=indices is None)
        self._in_order, self._stays = loader.in_order, loader.persistent_workers
        self._timeout_s = loader.timeout
        self._most_due = loader.prefetch_factor
        self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self._meter.workers = workers
        self._pool = start(self)
        refuse_in_children(self)
        self._reset(loader, first_iter=True)

    def _begin_epoch(self) -> None:
        """Order as much as may be under way. `persistent_workers` may still be busy with an epoch that was left early."""
        while self._due:
            number, result = self._receive()
            self._settle(number, result)
            self._early[number] = result
        self._drop(self._early.values())
        self._early.clear()
        self._begin_turns()
        for _ in range(self._most_due * self._crew_size):
            self._order_next()

    def _begin_turns(self) -> None:
        """Nothing is under way: begin to count."""
        self._expected, self._is_over = self._sent, False
        self._turns = itertools.cycle(range(self._crew_size))
        self._helped = 0

    def _next_turn(self) -> int | None:
        """The worker that gets the next work."""
        worker = next(self._turns)
        if not self._in_order:  # a slow worker does not hold up the others
            while self._load[worker] >= self._most_due:
                worker = next(self._turns)
        return worker

    def _next_work(self) -> Work:
        """The next work to order. Raises StopIteration after the last."""
        return Work(0, 0, 0, self._next_index())

    def _order_next(self) -> None:
        if self._is_over:
            return
        try:
            work = self._next_work()
        except StopIteration:
            self._is_over = True
            return
        worker = self._next_turn()
        if worker is None:
            return
        self._due[self._sent] = worker
        self._load[worker] += 1
        assert self._pool is not None
        self._pool.order(worker, self._sent, work)
        self._sent += 1

    def _drop(self, results: Iterable[Result]) -> None:
        """Free what was made and nobody will open."""
        for result in results:
            if isinstance(result, Made) and self._pool is not None:
                self._pool.drop(result)

    def _obtain(self) -> Any:
        made = self._made(self._next_result())
        assert self._pool is not None
        return self._finished(made, self._pool.open(made))

    def _made(self, result: Result) -> Made:
        """What was made. An error of the user's dataset is raised here."""
        if not isinstance(result, Made):
            result.reraise()
            raise AssertionError
        self._arrived += result.samples
        return result

    def _next_result(self) -> Result:
        """The result that is due next."""
        self._is_due = False
        while True:
            if (number := self._expected) in self._early:
                result = self._early.pop(number)
                self._expected += 1
                break
            if not self._due:
                self._end()
                raise StopIteration
            number, result = self._receive()
            self._settle(number, result)
            if number == self._expected or not self._in_order:
                self._expected += 1
                break
            self._early[number] = result
        self._latest = number
        try:
            self._order_next()
            while self._pool is not None and self._helped < self._pool.helpers:
                self._helped += 1
                self._order_next()
        except BaseException:  # of the user's sampler
            self._drop([result])
            raise
        return result

    def _receive(self) -> tuple[int, Result]:
        """The next result that arrives, in any order."""
        pool = self._pool
        assert pool is not None
        deadline = now() + self._timeout_s if self._timeout_s else float("inf")
        self._is_due = True
        while True:
            try:
                number, result = pool.get(max(0.0, min(deadline - now(), LOOK_AFTER_WORKERS_S)))
            except queue.Empty:
                pool.crew.check()
                late = self._due.get(self._expected, -1) if self._in_order else -1
                if self._record is not None:
                    self._record.late(self._meter.batches, pool.pid_of(self._expected, late) if late >= 0 else 0)
                if now() >= deadline:
                    raise RuntimeError(
                        f"DataLoader timed out after {self._timeout_s} seconds{self._who_is_late(late)}"
                    ) from None
                continue
            if number in self._due:
                self._is_due = False
                return number, result
            self._drop([result])  # it came before: from a child that the dataset forked, or two workers have made it

    def _settle(self, number: int, result: Result) -> None:
        """Note that a work is done, and how long it took."""
        self._load[self._due.pop(number)] -= 1
        if isinstance(result, Made):
            self._meter.prep_s += result.prep_s
            if result.counts is not None:
                self._meter.add(result.counts)

    def _who_is_late(self, worker: int) -> str:
        if worker < 0:
            return ""
        assert self._pool is not None
        pid, own = self._pool.pid_of(self._expected, worker), self._pool.crew.pid(worker)
        who = f"worker {worker} (pid {own})" if pid == own else f"a worker of another rank (pid {pid})"
        return f", waiting for {who}, which is alive. Raise timeout=, or see what it does with `py-spy dump --pid`."

    def _end(self) -> None:
        """End the epoch, and the workers too unless `persistent_workers` is set."""
        if not self._stays and self._pool is not None:
            crew = self._pool.crew
            self.close()
            crew.check_ends()

    @property
    def pids(self) -> list[int]:
        """The pids of the worker processes."""
        return [] if self._pool is None else self._pool.crew.pids

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:
        """End the workers now."""
        pool, self._pool = self._pool, None
        if pool is not None and self._owner == getpid():
            self._due.clear()
            self._early.clear()
            pool.close()

    _shutdown_workers = close  # torch's name, which frameworks call

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # then the crew has ended, and modules may be empty already
            self.close()


class SeededPoolIter(PoolIter):
    """`num_workers>0`, with a seed. It puts together batches that were ordered in parts."""

    def __init__(
        self, loader: Any, works: EpochWorks, here: PositionMaker, start: Callable[[Any], Pool], *, has_rows: bool
    ) -> None:
        self._works = works
        self._here = here
        """For batches whose parts have to be collated in this process."""
        self._loader = loader
        self._parts: list[Result] = []
        """The parts of the next batch that are here. An interrupt may come before all are."""

        def start_with_slots(iterator: Any) -> Pool:
            pool = start(iterator)
            if has_rows:
                works.claim_common, works.free_common = pool.claim_common, pool.free_common
            return pool

        super().__init__(loader, start_with_slots, indices=works)

    def _next_work(self) -> Work:
        work: Work = self._next_index()
        return work

    def _begin_epoch(self) -> None:
        self._drop(self._parts)
        self._parts.clear()
        super()._begin_epoch()

    def _made(self, result: Result) -> Made:
        made = super()._made(result)
        if made.draws:
            self._loader._draws = True
        return made

    def _obtain(self) -> Any:
        if not self._works.ordered or self._works.ordered[0].parts == 1:
            return self._whole()
        ordered = self._works.ordered[0]
        while len(self._parts) < ordered.parts:
            self._parts.append(self._next_result())
        results, self._parts = self._parts, []
        try:
            parts = [self._made(result) for result in results]
        except Exception:
            self._drop(results)
            self._works.forget(ordered)
            raise
        pool = self._pool
        assert pool is not None
        if all(part.is_part and part.layout == parts[0].layout for part in parts):
            return pool.open_common(parts)
        self._works.forget(ordered)
        with self._collating():
            lists = [None if part.is_part else pool.open(part) for part in parts]
            if all(type(samples) is list for samples in lists):
                batch = self._here.merge(ordered.work, list(itertools.chain(*lists)))  # type: ignore[arg-type]
            else:  # too unlike each other to lie in one slot
                batch = self._here.remake(ordered.work)
        return self._pinned(batch)

    def _whole(self) -> Any:
        """A batch that was ordered as a whole. If it comes as samples, from another host, they are collated here."""
        made = self._made(self._next_result())
        assert self._pool is not None
        if made.rest != COLLATE:
            return self._finished(made, self._pool.open(made))
        with self._collating():
            batch = self._here.merge(self._works.ordered[0].work, self._pool.open(made))
        return self._pinned(batch)

    @contextlib.contextmanager
    def _collating(self) -> Iterator[None]:
        # Worker threads draw from this process's generators at any time, so there is no state to go back to.
        with contextlib.nullcontext() if self._here.positions.threads else generators_restored(), _one_thread():
            yield

    def _saw(self) -> None:
        if self._works.ordered:  # or else a worker has died after the last batch
            ordered = self._works.ordered.popleft()
            self._progress.saw(ordered.samples)
            if self._ahead is not None:
                self._ahead.took(ordered.parts)


class InTurnIter(PoolIter):
    """Worker processes that other ranks may help, without a seed. Says once if the dataset draws, so that they cannot."""

    def __init__(self, loader: Any, start: Callable[["PoolIter"], Pool]) -> None:
        self._loader = loader
        super().__init__(loader, start)

    def _next_work(self) -> Work:
        ids = self._next_index()
        return Work(0, 0, 0, ids.view(AsItIs) if type(ids) is np.ndarray else ids)

    def _made(self, result: Result) -> Made:
        if self._pool is not None and self._pool.draws:
            sharing.say(self._loader, _DRAWS)
        return super()._made(result)


_DRAWS = (
    "without a seed a worker's random numbers go on from batch to batch, and this dataset draws some, or is changed by "
    "reading it: seed=n shares what draws (stoker run --seed N)"
)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As in workers: threads that meet at a barrier while all cores are taken by workers cost a hundred milliseconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
