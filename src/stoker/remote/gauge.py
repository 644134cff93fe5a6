"""What the relay sees of a job: who made how much, who was busy, and what it cost. `decide.split` decides from it.

Everything is read from counters that are there anyway: offers of the ranks, the kernel's times of their workers, and what
seats have delivered. Rates are in samples; a work counts as a usual batch.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stoker.decide.looks import Look
from stoker.host import process
from stoker.remote.ranks import Rank
from stoker.remote.seats import RemoteSeat

LOOK_S = 1.0
FEWEST_BATCHES = 4
_INTERRUPTED_S = 15.0
"""A look of this length with too few batches in it means nothing."""


@dataclass(slots=True)
class _Before:
    """What was counted of a rank at the last look."""

    batches: int
    samples: int
    waited_us: int
    made: int
    delivered: int
    cpu_s: float


_Changes = list[tuple[_Before, _Before]]


class Gauge:
    """Gathers what `look` tells. Used by one thread."""

    def __init__(self, at: float) -> None:
        self._before: dict[str, _Before] = {}
        self._timings: list[float] = []
        self._timed: dict[str, int] = {}
        self._busy: dict[RemoteSeat, float] = {}
        self._parts: set[str] = set()
        """Those of the works that were under way at the last look."""
        self.own_batch_s = 0.0
        """How long a worker of this host takes for a batch; 0 before that is known."""
        self._begin(at)

    def _begin(self, at: float) -> None:
        self._at = self._began = at
        self._here_s = self._all_here_s = 0.0
        self._cpu_s = time.process_time()

    def note(self, at: float, ranks: Iterable[Rank]) -> None:
        """Note how many own workers are busy, for the time since this was noted before."""
        span_s, self._at = at - self._at, at
        for rank in ranks:
            self._here_s += span_s * min(rank.works.busy(), rank.workers)
            self._all_here_s += span_s * rank.workers

    def look(self, at: float, ranks: Collection[Rank], seats: Collection[RemoteSeat], part: str) -> Look | None:
        """What happened since the last look, when works were given with a part; None if that is too little yet."""
        seconds = at - self._began
        if seconds < LOOK_S:
            return None
        for rank in ranks:
            told = rank.works.told()
            if told.timed != self._timed.get(rank.address, 0) and told.loop_rate:
                self._timed[rank.address] = told.timed
                self._timings.append(told.loop_rate / 1000 * len(ranks))
        now = {rank.address: _counts(rank) for rank in ranks}
        changes = [(self._before[name], one) for name, one in now.items() if name in self._before]
        batches = sum(one.batches - before.batches for before, one in changes)
        if changes and batches < FEWEST_BATCHES * len(changes) and seconds < _INTERRUPTED_S:
            return None
        before, self._parts = self._parts, {seat.part for seat in seats if seat.task is not None}
        is_mixed = bool((before | self._parts) - {part})
        found = self._found(seconds, changes, batches, self._busy_there(at, seconds, seats), is_mixed=is_mixed)
        self._before = now
        self._begin(at)
        return found

    def _busy_there(self, at: float, seconds: float, seats: Collection[RemoteSeat]) -> tuple[float, int]:
        """The part of their time that seats had works, and how many workers they belong to."""
        before, self._busy = self._busy, {seat: seat.busy_s(at) for seat in seats}
        busy_s = sum(busy_s - before.get(seat, 0.0) for seat, busy_s in self._busy.items())
        return (min(1.0, busy_s / (seconds * len(seats))) if seats else 0.0), len({seat.worker for seat in seats})

    def _found(
        self, seconds: float, changes: _Changes, batches: int, remote: tuple[float, int], *, is_mixed: bool
    ) -> Look | None:
        taken = sum(one.samples - before.samples for before, one in changes)
        if not changes or batches <= 0 or not taken:
            return None
        batch = taken / batches
        there = sum(one.delivered - before.delivered for before, one in changes)
        here = max(0, sum(one.made - before.made for before, one in changes) - there)
        if here:
            self.own_batch_s = self._here_s / here
        waited_s = sum(one.waited_us - before.waited_us for before, one in changes) / 1e6
        return Look(
            seconds,
            here * batch,
            there * batch,
            taken,
            min(1.0, max(0.0, waited_s / (seconds * len(changes)))),
            self._here_s / self._all_here_s if self._all_here_s else 0.0,
            *remote,
            sum(max(0.0, one.cpu_s - before.cpu_s) for before, one in changes),
            time.process_time() - self._cpu_s,
            is_mixed,
            tuple(self._timings),
        )


def _counts(rank: Rank) -> _Before:
    told = rank.works.told()
    processes = [process.find(pid) for pid in rank.works.pids()]
    cpu_s = sum(found.cpu_s for found in processes if found is not None)
    return _Before(told.batches, told.samples, told.waited_us, rank.works.made(), rank.delivered, cpu_s)
