"""Iterators of a loader with a seed: the works of an epoch say what is prepared. Results depend on positions alone."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stoker.feed.carrier import MapIter
from stoker.feed.pooled import PoolIter
from stoker.feed.route import EpochWorks
from stoker.meter import now
from stoker.pool.maker import PositionMaker
from stoker.pool.pool import Pool
from stoker.pool.serving import Result
from stoker.pool.threads import HereRoom
from stoker.pool.work import COLLATE, Made, Work
from stoker.tensor.seeding import generators_restored


class SeededInlineIter(MapIter):
    """`num_workers=0`, with a seed. The training process's own generators are left as they were."""

    def __init__(self, loader: Any, works: EpochWorks, maker: PositionMaker) -> None:
        self._works = works
        self._maker = maker
        super().__init__(loader, indices=works)
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self._meter.workers = 0
        self._room = HereRoom(loader.caching, None, pins=self._pin_memory)

    def _obtain(self) -> Any:
        with generators_restored():
            work = self._next_index()
            began = now()
            with self._caching.active():
                made = self._maker.make(work, self._room)
        self._meter.prep_s += now() - began
        if made.counts is not None:
            self._meter.add(made.counts)
        self._arrived = made.samples
        return made.batch

    def _saw(self) -> None:
        if self._works.ordered:  # or else the user's sampler has failed
            self._progress.saw(self._works.ordered.popleft().samples)
            if self._ahead is not None:
                self._ahead.took()


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


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As in workers: threads that meet at a barrier while all cores are taken by workers cost a hundred milliseconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
