"""The iterator of a loader with a seed and without workers. What a batch holds depends on positions alone."""

from typing import Any

from stoker.feed.carrier import MapIter
from stoker.feed.route import EpochWorks
from stoker.meter import now
from stoker.pool.maker import PositionMaker
from stoker.pool.threads import HereRoom
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
