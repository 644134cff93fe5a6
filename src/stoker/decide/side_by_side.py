"""Jobs that read the same data, started one after another: when each ends, event by event. Pure.

Between two events every job goes at one pace (`pace`). Events: a job starts, reaches the frontier, reaches what the cache
can hold, ends its first pass, ends. So the time of every event is a linear function of any one start, as long as the order
of events stays; `play` follows the slopes along with the values, and says how far the start can move until it changes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.decide.pace import AGAIN, FOLLOW, LEAD, PAST, WITH, Pace, StaggerJob

Line = tuple[float, float]
"""A value, and by how much it grows for each second that the start is moved."""


@dataclass(frozen=True, slots=True)
class PairPhase:
    """A time in which nothing changes: what each job does in it, "" if it does not run."""

    begin_s: float
    end_s: float
    modes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlayedJobs:
    """What became of jobs that were started at some times."""

    starts_s: tuple[float, ...]
    ends: tuple[Line, ...]
    holds_s: float
    """How far the start that is moved can go until the slopes change."""
    datasets_read: float
    """What came from storage, in whole datasets."""
    phases: tuple[PairPhase, ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(end for end, _ in self.ends) - min(self.starts_s)

    @property
    def times_s(self) -> tuple[float, ...]:
        """How long each job takes."""
        return tuple(end - start for (end, _), start in zip(self.ends, self.starts_s, strict=True))


def utilisation(played: PlayedJobs, jobs: Sequence[StaggerJob]) -> float:
    """The part of the jobs' time in which they compute."""
    computed_s = sum(job.epochs * job.iterations * job.times.compute_s for job in jobs)
    return min(1.0, computed_s / sum(played.times_s))


class SideBySide:
    """Jobs on one host with one cache, which holds a part of the data, and has some of it already."""

    def __init__(self, jobs: Sequence[StaggerJob], *, cached: float = 1.0, ready: float = 0.0, ahead: int = 0) -> None:
        self.jobs = tuple(jobs)
        self._settings = {"cached": cached, "ready": ready, "ahead": ahead}
        self._cached, self._ready = cached, min(ready, cached)
        self._pace = Pace(jobs, cached)
        self._zone = [ahead / job.iterations for job in jobs]
        """A job that prefetches meets the reads of the leader so far behind it."""

    def play(self, starts_s: Sequence[float], moved: int | None = None) -> PlayedJobs:
        """Start the jobs at these times; slopes are for a later start of the one that is moved."""
        return _Play(self, self._pace, starts_s, moved).result()

    def only(self, numbers: Sequence[int]) -> "SideBySide":
        """The same with some of the jobs, in this order."""
        return SideBySide([self.jobs[number] for number in numbers], **self._settings)  # type: ignore[arg-type]

    def done_at(self, played: PlayedJobs, number: int, at_s: float) -> float:
        """How many passes over the data a job has made by some moment."""
        done = 0.0
        for phase in played.phases:
            if phase.modes[number] and phase.begin_s < at_s:
                done += (min(phase.end_s, at_s) - phase.begin_s) / self._pace.passes_s(phase.modes)[number]
        return done

    def alone_s(self, number: int) -> float:
        """How long a job takes when no other runs."""
        return self.only([number]).play([0.0]).makespan_s


class _Play:
    def __init__(self, stage: SideBySide, pace: Pace, starts_s: Sequence[float], moved: int | None) -> None:
        self._stage, self._pace = stage, pace
        self._starts: list[Line] = [(start, float(number == moved)) for number, start in enumerate(starts_s)]
        self._limit, self._frontier = stage._cached, stage._ready
        """What the cache can hold; what it holds, unless somebody leads."""
        self._now: Line = (min(starts_s), 0.0)
        self._waiting = list(range(len(starts_s)))
        self._modes = [""] * len(starts_s)
        self._done: list[Line] = [(0.0, 0.0)] * len(starts_s)
        self._ends: list[Line] = [(start, 0.0) for start in starts_s]
        self._leader: int | None = None
        self._is_full = self._frontier >= self._limit
        self._holds_s = math.inf
        self._read = 0.0
        self._phases: list[PairPhase] = []

    def result(self) -> PlayedJobs:
        while self._waiting or any(self._modes):
            self._step()
        starts = tuple(start for start, _ in self._starts)
        return PlayedJobs(starts, tuple(self._ends), self._holds_s, self._read, tuple(self._phases))

    def _step(self) -> None:
        """Go on to the next event, and let it happen."""
        passes_s = self._pace.passes_s(tuple(self._modes))
        events = [*self._coming(passes_s)]
        first, act, number = min(events, key=lambda event: event[0])
        for (value, slope), _, _ in events:
            if slope < first[1]:
                self._holds_s = min(self._holds_s, (value - first[0]) / (first[1] - slope))
        self._move(first, passes_s)
        act(number)

    def _coming(self, passes_s: Sequence[float]) -> "list[tuple[Line, Callable[[int], None], int]]":
        events: list[tuple[Line, Callable[[int], None], int]] = []
        for number in self._waiting:
            start, slope = self._starts[number]
            events.append((self._after((start - self._now[0], slope - self._now[1]), 1.0), self._start, number))
        for number, mode in enumerate(self._modes):
            if not mode:
                continue
            value, slope = self._done[number]
            if mode == FOLLOW and not self._is_full:
                events += self._catching_up(number, passes_s)
            elif mode in (FOLLOW, LEAD) and (self._limit < 1 or mode == LEAD):
                act = self._fill if mode == LEAD else self._pass_limit
                events.append((self._after((self._limit - value, -slope), passes_s[number]), act, number))
            elif mode != WITH:
                is_again = mode == AGAIN
                end = float(self._stage.jobs[number].epochs) if is_again else 1.0
                act = self._end if is_again else self._end_first
                events.append((self._after((end - value, -slope), passes_s[number]), act, number))
        return events

    def _catching_up(self, number: int, passes_s: Sequence[float]) -> "list[tuple[Line, Callable[[int], None], int]]":
        """When a job that follows is at the frontier, if it ever is."""
        value, slope = self._done[number]
        leader = self._leader
        if leader is None:
            return [(self._after((self._frontier - value, -slope), passes_s[number]), self._reach, number)]
        if passes_s[number] >= passes_s[leader]:
            return []
        ahead, ahead_slope = self._done[leader]
        running = sum(map(bool, self._modes))
        zone = 0.0 if self._overtakes(number, leader, running) else self._stage._zone[number]
        gap = (ahead - value - zone, ahead_slope - slope)
        return [(self._after(gap, 1 / (1 / passes_s[number] - 1 / passes_s[leader])), self._reach, number)]

    def _after(self, way: Line, pass_s: float) -> Line:
        """The time that a way takes. One that is behind already takes none, until the start moves it ahead again."""
        value, slope = way
        if value < 0 or (value == 0 and slope < 0):
            if slope > 0:
                self._holds_s = min(self._holds_s, -value / slope)
            return (0.0, 0.0)
        return (value * pass_s, slope * pass_s)

    def _move(self, time: Line, passes_s: Sequence[float]) -> None:
        seconds, slope = time
        for number, mode in enumerate(self._modes):
            if mode:
                done, its = self._done[number]
                way = seconds / passes_s[number]
                self._done[number] = (done + way, its + slope / passes_s[number])
                self._read += way * (1.0 if mode == LEAD else self._pace.reads(mode))
        if seconds and any(self._modes):
            self._phases.append(PairPhase(self._now[0], self._now[0] + seconds, tuple(self._modes)))
        self._now = (self._now[0] + seconds, self._now[1] + slope)

    # ---- events

    def _start(self, number: int) -> None:
        self._waiting.remove(number)
        self._modes[number] = PAST if self._limit == 0 else FOLLOW
        if self._leader is None and not self._is_full and self._frontier == 0:
            self._lead(number)

    def _reach(self, number: int) -> None:
        leader = self._leader
        if leader is None:
            self._lead(number)
        elif self._overtakes(number, leader, sum(map(bool, self._modes))):
            self._modes = [FOLLOW if mode in (LEAD, WITH) else mode for mode in self._modes]
            self._lead(number)
        else:
            self._modes[number] = WITH

    def _overtakes(self, number: int, leader: int, running: int) -> bool:
        """Whether a job that has caught up leaves the leader behind. If it does not, both go on together."""
        return self._pace.leads(number, leader, running) and self._pace.parts(number, leader, running)

    def _lead(self, number: int) -> None:
        self._leader, self._modes[number] = number, LEAD

    def _fill(self, number: int) -> None:
        """The cache holds all that it can."""
        self._is_full, self._leader = True, None
        self._modes = [FOLLOW if mode == WITH else mode for mode in self._modes]
        if self._limit < 1:
            self._modes[number] = PAST
        else:
            self._end_first(number)

    def _pass_limit(self, number: int) -> None:
        self._modes[number] = PAST

    def _end_first(self, number: int) -> None:
        if self._stage.jobs[number].epochs > 1:
            self._modes[number] = AGAIN
        else:
            self._end(number)

    def _end(self, number: int) -> None:
        self._modes[number] = ""
        self._ends[number] = self._now
