"""The queue of one loader: the batches that are ordered and not taken, and what of them is still to be read.

Batches are read in the order in which they were ordered. A queue knows how soon the loop will ask for its first unread
batch, and how long that takes to read: what readers are divided by.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.decide.loading import Loading, Needs, SampleTime, Seconds, alone, correction
from stoker.keeper.bringing import Bringing
from stoker.keeper.messages import Indices
from stoker.keeper.opens import Opens
from stoker.keeper.reuse import Reuse
from stoker.keeper.table import KeeperTable

_FIRST_S = 1e-3
"""What a file is taken to cost before one was read."""
_THERE_S = 2e-5
"""What it costs to find that a file is there already."""
_TRUST = 0.05
"""How much one sample moves the share that has to be read."""
_JUDGED = 256
"""After so many samples it shows whether a loader uses what is read ahead."""
_SURE, _EVERY = 256, 16
"""After so many samples in a row that were there, only every 16th is looked at, until one is not there."""


@dataclass(slots=True)
class Queued:
    """A batch that is ordered."""

    number: int
    indices: Indices
    begun: int = 0
    """Samples that readers have taken."""


@dataclass(slots=True, eq=False)
class LoaderQueue:
    """What one loader waits for. Callers hold the house's lock."""

    about: dict[str, Any]
    table: KeeperTable
    bringing: Bringing
    opens: Opens | None = None
    """What the samples were seen to open, if that is recorded. It counts for more than the table."""
    log: int = 0
    """The number of this loader's own record."""
    readers: int = 0
    """Readers that are assigned to it."""
    busy: int = 0
    """Readers that are at work for it now."""
    works: deque[Queued] = field(default_factory=deque)
    taken: int = 0
    is_full: bool = False
    """Whether nothing can be staged before a batch is taken."""
    is_closed: bool = False
    brought: int = 0
    sample_s: float = _FIRST_S
    share: float = 1.0
    """How many of its samples have to be read, from 0 to 1."""
    loop_s: float = 0.0
    """What the loop takes for a batch, without waiting for it; 0 if not known."""
    _last: tuple[float, int, float] | None = None
    _there: int = 0
    """How many samples in a row were there already."""
    _passed: int = 0

    @property
    def name(self) -> str:
        """What people call it."""
        rank, pid = self.about["rank"], self.about["pid"]
        return f"pid {pid}" if rank is None else f"rank {rank}"

    def add(self, number: int, indices: Indices, taken: int, waited_s: float, at: float) -> None:
        """A batch is ordered, and so many are taken by now."""
        self.bringing.stager.beat()
        self.works.append(Queued(number, indices))
        self.bringing.latest_work = number
        if taken > self.taken:
            if self._last is not None:
                before, count, waited = self._last
                if taken > count:
                    loop_s = max(1e-4, (at - before - (waited_s - waited)) / (taken - count))
                    self.loop_s = loop_s if not self.loop_s else 0.8 * self.loop_s + 0.2 * loop_s
            self._last = at, taken, waited_s
            self.take(taken)

    def take(self, taken: int) -> None:
        """Batches before this number were taken."""
        self.taken = max(self.taken, taken)
        used: list[int] = []
        while self.works and self.works[0].number < self.taken:
            used += self.works.popleft().indices.tolist()
        self._free(used, self.taken)

    def clear(self, taken: int) -> None:
        """Nothing is queued any more. Batches before this number were taken."""
        used = [index for work in self.works if work.number < taken for index in work.indices.tolist()]
        if self.works:
            self.taken = max(self.taken, self.works[-1].number + 1)
        self.works.clear()
        self._free(used, 1 << 62)
        self._last = None

    @property
    def reuse(self) -> Reuse | None:
        """What decides on the cache, if it decides on the files of this loader."""
        reuse = self.bringing.near.reuse
        return reuse if reuse is not None and reuse.digest == self.table.digest else None

    def _free(self, used: list[int], before: int) -> None:
        """Works before a number are done with: what was staged for them may go, once it was decided on."""
        reuse = self.reuse
        if reuse is None:
            self._freed(before)
        else:
            reuse.use(used, self.bringing.stager, lambda: self._freed(before))

    def _freed(self, before: int) -> None:
        self.bringing.stager.taken(before)
        self.is_full = False

    def is_useless(self) -> bool:
        """Whether workers do not open what is read for them: the table, or the record, is of other files. Judged anew."""
        stager = self.bringing.stager
        if stager.used + stager.unused < _JUDGED:
            return False
        is_useless = stager.used < stager.unused / 3
        stager.used = stager.unused = 0
        return is_useless

    def _knows(self, index: int) -> bool:
        return (self.opens is not None and self.opens.knows(index)) or index < len(self.table)

    def paths(self, index: int) -> Sequence[bytes]:
        """The files of a sample."""
        if self.opens is not None and self.opens.knows(index):
            return self.opens.paths(index)
        return (self.table.path(index),)

    def next(self) -> tuple[int, int] | None:
        """The next sample to bring, and the work that it is for."""
        if self.is_full or self.is_closed:
            return None
        for work in self.works:
            while work.begun < len(work.indices):
                index = int(work.indices[work.begun])
                work.begun += 1
                if self._knows(index) and self._is_looked_at():
                    return work.number, index
        return None

    def _is_looked_at(self) -> bool:
        self._passed += 1
        return self._there < _SURE or self._passed % _EVERY == 0

    def put_back(self, number: int) -> None:
        """The sample that was taken last for a work could not be brought now."""
        self.is_full = True
        for work in self.works:
            if work.number == number and work.begun:
                work.begun -= 1

    def met(self, took_s: float | None, *, is_there: bool) -> None:
        """A sample was read in so many seconds, or nothing had to be done because it was there."""
        self._there = self._there + 1 if is_there else 0
        self.share += _TRUST * ((took_s is not None) - self.share)
        if took_s is not None:
            self.brought += 1
            self.sample_s *= correction(self.sample_s, max(took_s, 1e-6))

    @property
    def has_more(self) -> bool:
        """Whether there is something to bring, and room for it."""
        return not self.is_full and not self.is_closed and any(work.begun < len(work.indices) for work in self.works)

    @property
    def unread(self) -> int:
        """Samples that nobody has begun to bring."""
        return sum(len(work.indices) - work.begun for work in self.works)

    @property
    def needed_in_s(self) -> float:
        """How soon the loop asks for the first batch that is not read."""
        first = next((work.number for work in self.works if work.begun < len(work.indices)), None)
        return math.inf if first is None else (first - self.taken) * max(self.loop_s, 1e-4)

    def batch_s(self, most: int) -> Seconds:
        """How long a batch takes to bring, by the number of readers."""
        sizes = [len(work.indices) for work in self.works]
        samples = sum(sizes) / len(sizes) if sizes else 0.0
        storage = SampleTime({count: self.sample_s / count for count in range(1, max(1, most) + 1)})
        here = SampleTime({count: _THERE_S / count for count in range(1, max(1, most) + 1)})
        needs = Needs(here=(1 - self.share) * samples, storage=self.share * samples)
        return Loading(here=alone(here), storage=alone(storage)).seconds(needs, most)

    def state(self) -> dict[str, Any]:
        """What others may see."""
        return {
            **self.about,
            "queued": len(self.works),
            "unread": self.unread,
            "readers": self.readers,
            "busy": self.busy,
            "brought": self.brought,
            "bytes": self.bringing.bytes_read,
            "staged_bytes": self.bringing.stager.bytes_staged,
            "sample_ms": round(self.sample_s * 1e3, 3),
            "loop_ms": round(self.loop_s * 1e3, 3),
        }
