"""Jobs are measured side by side, while one of them already does its work.

All are started at the same time. The one that reads first, the leader, is never paused, so its work is not held up: what
storage gives shows in its own record. The others wait at their first batch, and then each goes after it for a moment:

    leader alone, from storage     the others wait
    another one, what it has read  beside the leader
    both, from storage             where that one has caught up in time

Another one goes for at most a tenth of the time that the leader will take, and less as soon as its times are sure. What it
reads stays in the cache. Nothing that is measured here decides which process is dead.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.errors import CommandError
from stoker.live.record import Seen
from stoker.measure.series import Series
from stoker.run.together.catalogue import Beside, Solo
from stoker.run.together.jobs import TogetherJob
from stoker.run.together.running import LOOK_S, Running
from stoker.run.together.stretches import Stretch, from_cache, from_storage, stretch
from stoker.run.together.values import Follower, Leader, follower_solo, leader_solo, pair

START_S = 600.0
"""A job that has no batch after so long is given up."""
STUCK_S = 60.0
"""And so is one that gets no further one for so long."""
_BUDGET = 0.1
_BLOCK_S, _SURE = 0.25, 0.02
_LEAST, _FEWEST, _PART = 16, 6, 20
"""A state has at least so many iterations, or so few if time is short; and of an epoch one in so many, if that is more."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was seen of jobs, in their order."""

    solo: tuple[Solo, ...]
    pairs: dict[tuple[int, int], Beside]
    """Of the first beside the second."""
    tried_s: float
    """How long others than the leader ran, all together."""
    ready: float
    """The part of the data that was in the cache before."""
    defaults: tuple[str, ...]
    """What was not seen."""


def calibrate(
    runs: Sequence[Running],
    jobs: Sequence[TogetherJob],
    leader: int,
    most: int,
    ready_part: Callable[[str, float], float],
    known: Solo | None,
    tell: Callable[[str], None],
) -> Calibration:
    """Look at jobs that were just started. Afterwards all but the leader are paused.

    `ready_part` says which part of so many bytes the cache of a name holds, and raises if it cannot hold enough of them;
    `known` is what is known of the leader.
    """
    watched = [_Watched(run) for run in runs]
    first, others = watched[leader], [one for number, one in enumerate(watched) if number != leader]
    tell("starting all jobs to measure them")
    _begin(first, others)
    begin = first.marks[0]
    whole = begin.epoch_length * begin.samples / begin.batches * _sample_bytes(first)
    ready = max(0.0, ready_part(begin.facts.cache, whole) - first.now.bytes_storage / whole)
    tell(f"measuring {first.run.name}")
    quiet = len(first.marks)
    is_cold = _settle(first, others, quiet, jobs[leader].epochs)
    alone = _sure(stretch(first.marks[quiet:]), first)
    budget_s = _BUDGET * alone.period_s * begin.epoch_length * jobs[leader].epochs
    seen, tried_s = {}, 0.0
    for number, other in ((number, one) for number, one in enumerate(watched) if number != leader):
        tell(f"measuring {other.run.name} beside {first.run.name}")
        went_at = time.monotonic()
        seen[number] = _follow(first, other, most, went_at + budget_s, is_cold=is_cold)
        tried_s += time.monotonic() - went_at
    cold = stretch(from_storage(first.marks, first.queued))
    cached = stretch(from_cache(first.marks, first.queued))
    solo: dict[int, Solo] = {}
    pairs: dict[tuple[int, int], Beside] = {}
    for number, (its, beside, both) in seen.items():
        leads = Leader(cold, cached, alone, beside, both)
        solo[leader] = leader_solo(first.now, first.run.startup_s, leads, its, known)
        solo[number] = follower_solo(watched[number].now, watched[number].run.startup_s, its, solo[leader])
        pairs[leader, number], pairs[number, leader] = pair(solo[leader], solo[number], leads, its)
    missing = [] if solo[leader].cold_iterations else ["from storage (as from the cache)"]
    missing += [] if cached is not None else [f"{first.run.name} from the cache (as {others[0].run.name})"]
    missing += [] if all(both is not None for _, _, both in seen.values()) else ["both from storage (as one of them)"]
    return Calibration(tuple(solo[number] for number in range(len(runs))), pairs, tried_s, ready, tuple(missing))


class _Watched:
    """A job, and all that was seen of it, batch by batch."""

    def __init__(self, run: Running) -> None:
        self.run = run
        self.marks: list[Seen] = []
        self._since = time.monotonic()

    @property
    def now(self) -> Seen:
        return self.marks[-1]

    @property
    def batch(self) -> float:
        return self.now.samples / self.now.batches

    @property
    def queued(self) -> int:
        """Batches that may have been prepared while it waited."""
        return 2 * max(1, self.now.workers) + 1

    def look(self) -> None:
        seen, at = self.run.look(), time.monotonic()
        if seen is not None and seen.batches and (not self.marks or seen.batches > self.now.batches):
            self.marks.append(seen)
            self._since = at
        if self.run.is_over and not self.marks:
            only = " of training: it only evaluates" if self.run.only_evaluates else ""
            raise self.run.failure(f"before its first batch{only}")
        if self.run.is_over:
            is_short = "" if self.run.code else ": it is too short to be planned for"
            raise self.run.failure(f"while it was measured{is_short}")
        if self.run.is_paused:
            self._since = at
        elif not self.marks and at - self._since > START_S:
            raise CommandError(f"{self.run.name} has given no batch in {START_S:.0f} s: does it iterate a DataLoader?")
        elif self.marks and at - self._since > STUCK_S:
            raise CommandError(f"{self.run.name} got no batch for {STUCK_S:.0f} s while it was measured")


def _watch(jobs: Sequence[_Watched], is_enough: Callable[[], bool]) -> None:
    while not is_enough():
        for job in jobs:
            job.look()
        time.sleep(LOOK_S)


def _begin(first: _Watched, others: Sequence[_Watched]) -> None:
    """Wait until all have their first batch; all but the first wait there."""

    def have_begun() -> bool:
        for one in others:
            if one.marks:
                one.run.pause()
        return all(one.marks for one in (first, *others))

    _watch([first, *others], have_begun)
    for one in (first, *others):
        if not one.now.facts.cache:
            raise CommandError(f"the data of {one.run.name} goes through no cache: there is nothing that it could share")
        if not one.now.hits + one.now.misses:
            raise CommandError(f"the cache has seen no file of {one.run.name}: it would gain nothing (docs/caching.md)")
        if not one.now.epoch_length:
            raise CommandError(f"the loader of {one.run.name} does not know how long its epochs are")
        if one.now.facts.cache != first.now.facts.cache:
            raise CommandError(
                f"{first.run.name} and {one.run.name} read different data: neither gains by what the other has read (a "
                "cache belongs to the folders of a dataset; `stoker cache ls` names them)"
            )


def _settle(first: _Watched, others: Sequence[_Watched], quiet: int, epochs: int) -> bool:
    """Let the leader go on alone until its times are known, and it is ahead of all; whether it reads from storage.

    Earlier runs may have read a part of the data. If it is still there after a tenth of its time, it is not waited for.
    """
    began_at = time.monotonic()
    ahead = max((one.queued + _LEAST) * one.batch for one in others)

    def is_cold() -> bool:
        return len(from_storage(first.marks, first.queued)) > _LEAST

    def is_settled() -> bool:
        if len(first.marks) <= quiet + _LEAST:
            return False
        if is_cold():
            return first.now.samples >= ahead
        alone = _sure(stretch(first.marks[quiet:]), first)
        return time.monotonic() - began_at > _BUDGET * alone.period_s * first.now.epoch_length * epochs

    _watch([first, *others], is_settled)
    return is_cold()


def _follow(
    first: _Watched, other: _Watched, most: int, until: float, *, is_cold: bool
) -> tuple[Follower, Stretch | None, Stretch | None]:
    """Let another one go after the leader; what was seen of it, and of the leader beside it, and at one place with it."""
    count = min(most, max(_LEAST, other.now.epoch_length // _PART))
    start, beside = len(other.marks), len(first.marks)

    def marks() -> Sequence[Seen]:
        return [mark for mark in other.marks[start:] if mark.batches >= other.marks[start].batches + other.queued]

    def has_caught_up() -> bool:
        return is_cold and other.now.samples + other.queued * other.batch >= first.now.samples

    def has_followed() -> bool:
        seen = marks()
        is_late = time.monotonic() > until and len(seen) > _FEWEST
        return len(seen) > count or is_late or (bool(seen) and has_caught_up()) or _is_sure(seen)

    other.run.go_on()
    _watch([first, other], has_followed)
    cached = stretch(marks())
    both: tuple[Stretch | None, Stretch | None] = (None, None)
    if is_cold and _meets(first, other, beside, until):
        _watch([first, other], lambda: has_caught_up() or time.monotonic() > until)
        at_one = len(first.marks) + first.queued, len(other.marks) + other.queued
        _watch([first, other], lambda: time.monotonic() > until or len(first.marks) > at_one[0] + _LEAST)
        if len(first.marks) > at_one[0] + _LEAST // 2:
            both = stretch(first.marks[at_one[0] :]), stretch(other.marks[at_one[1] :])
    other.run.pause()
    follower = Follower(_sure(cached or both[1], other), both[1])
    return follower, stretch(first.marks[beside:]), both[0]


def _meets(first: _Watched, other: _Watched, since: int, until: float) -> bool:
    """Whether one that follows is at one place with the leader in time to see some iterations there."""
    ahead, pace = stretch(first.marks[since:]), stretch(other.marks)
    if ahead is None or pace is None:
        return False
    faster = other.batch / pace.period_s - first.batch / ahead.period_s
    left = first.now.samples - other.now.samples
    return faster > 0 and time.monotonic() + left / faster + _LEAST // 2 * ahead.period_s < until


def _is_sure(marks: Sequence[Seen]) -> bool:
    """Whether the pace of some iterations is known well."""
    if len(marks) <= _LEAST:
        return False
    series, block = Series(), marks[0]
    for mark in marks[1:]:
        if mark.left_at - block.left_at >= _BLOCK_S:
            series.add(mark.batches - block.batches, mark.left_at - block.left_at)
            block = mark
    return series.width <= _SURE


def _sample_bytes(one: _Watched) -> float:
    return max(1.0, (one.now.bytes_storage + one.now.bytes_cache) / (one.now.hits + one.now.misses))


def _sure(found: Stretch | None, one: _Watched) -> Stretch:
    if found is None:
        raise CommandError(f"{one.run.name} made too little progress while it was measured")
    return found
