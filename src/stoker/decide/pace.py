"""How fast jobs go that read the same data side by side: seconds for a pass over the data, by what each of them does. Pure.

A job that runs does one of these:

    FOLLOW   first pass, behind the frontier (what others have read so far): it reads from the cache
    LEAD     first pass, at the frontier: it reads from storage, and what it reads is kept
    WITH     first pass, at the frontier together with the leader: each item is read once, and both go at one pace
    PAST     first pass, beyond what the cache can hold: it reads from storage, for itself alone
    AGAIN    a later pass: what the cache holds comes from there, the rest from storage

Waits are pipelined: data is loaded while the loop computes, and a wait is what is left of loading. So a loop that computes
more slowly beside another job waits less, unless the wait there was measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from stoker.errors import ConfigError

FOLLOW, LEAD, WITH, PAST, AGAIN = "follow", "lead", "with", "past", "again"


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """What one iteration of a job takes, in seconds. None was not measured, and is estimated from the others."""

    compute_s: float
    """The loop itself, alone on the host."""
    wait_cold_s: float
    """How long it waits for data from storage, alone."""
    wait_cached_s: float
    """How long it waits for data from the cache, alone."""
    wait_both_cold_s: float | None = None
    """From storage, with another job that reads the same at the same time. None: as the slower of the two goes alone."""
    wait_beside_s: float | None = None
    """From the cache, while another job reads from storage. None: as alone."""
    wait_both_cached_s: float | None = None
    """From the cache, while another job does so, too. None: as alone."""
    compute_beside_s: float | None = None
    """The loop beside one other job; each further one adds as much. None: as alone."""
    wait_apart_s: float | None = None
    """From storage, while another job reads other items there. None: `wait_both_cold_s`, or half of the link for each."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{item.name} must be a number of seconds that is not negative, not {value}")
        if self.compute_s + min(self.wait_cold_s, self.wait_cached_s) <= 0:
            raise ConfigError("an iteration must take some time: compute_s and the waits are 0")
        for name in ("wait_both_cold_s", "wait_beside_s", "wait_both_cached_s", "wait_apart_s"):
            wait_s = getattr(self, name)
            if wait_s is not None and self.loop_beside_s + wait_s <= 0:
                raise ConfigError(f"an iteration must take some time beside another job, too: the loop and {name} are 0")

    @property
    def loop_beside_s(self) -> float:
        """The loop beside one other job, measured or not."""
        return self.compute_s if self.compute_beside_s is None else self.compute_beside_s


class StaggerJob(NamedTuple):
    """A job that reads the data some times over."""

    times: IterationTimes
    epochs: int
    iterations: int
    """In an epoch."""


class Pace:
    """The seconds per pass of each of some jobs, for every combination of what they do."""

    def __init__(self, jobs: Sequence[StaggerJob], cached: float) -> None:
        self._jobs = jobs
        self._cached = cached
        self._known: dict[tuple[str, ...], tuple[float, ...]] = {}

    def passes_s(self, modes: tuple[str, ...]) -> tuple[float, ...]:
        """Seconds for a pass over the data, of each job; inf for one whose mode is "": it does not run."""
        found = self._known.get(modes)
        if found is None:
            found = self._known[modes] = tuple(self._pass_s(number, modes) for number in range(len(modes)))
        return found

    def parts(self, leader: int, other: int, running: int) -> bool:
        """Whether, at the frontier, a leader leaves another job behind: that one does not keep up even with cached data."""
        return self._cached_s(other, running, beside=True) >= self._cold_s(leader, running)

    def leads(self, one: int, other: int, running: int) -> bool:
        """Whether a job goes no slower from storage than another does."""
        return self._cold_s(one, running) <= self._cold_s(other, running)

    def _pass_s(self, number: int, modes: tuple[str, ...]) -> float:
        mode = modes[number]
        if not mode:
            return math.inf
        running = sum(map(bool, modes))
        if mode in (LEAD, WITH) and WITH in modes:
            group = [one for one, its in enumerate(modes) if its in (LEAD, WITH)]
            return max(self._together_s(one, group, running) for one in group)
        # The jobs at the frontier read each item once: they are one reader.
        at_frontier = any(its in (LEAD, WITH) for one, its in enumerate(modes) if one != number)
        readers = at_frontier + sum(self.reads(its) for one, its in enumerate(modes) if one != number)
        cached_s = self._cached_s(number, running, beside=readers > 0)
        if mode == FOLLOW:
            return cached_s
        cold_s = self._cold_s(number, running)
        if readers:
            apart_s = max(self._apart_s(number, other, running) for other in range(len(modes)) if other != number)
            cold_s += readers * (apart_s - cold_s)
        return cold_s if mode != AGAIN else self._cached * cached_s + (1 - self._cached) * cold_s

    def reads(self, mode: str) -> float:
        """How much of what a job reads on its own comes from storage."""
        return 1.0 if mode == PAST else 1 - self._cached if mode == AGAIN else 0.0

    def _compute_s(self, number: int, running: int) -> float:
        times = self._jobs[number].times
        beside_s = times.loop_beside_s
        # Others can seem to make it faster, by the noise of a measurement; but several not more so than one.
        return max(times.compute_s + (running - 1) * (beside_s - times.compute_s), min(times.compute_s, beside_s))

    def _cold_s(self, number: int, running: int) -> float:
        times, iterations = self._jobs[number].times, self._jobs[number].iterations
        return iterations * max(self._compute_s(number, running), times.compute_s + times.wait_cold_s)

    def _cached_s(self, number: int, running: int, *, beside: bool) -> float:
        times, iterations = self._jobs[number].times, self._jobs[number].iterations
        compute_s = self._compute_s(number, running)
        wait_s = times.wait_beside_s if beside else times.wait_both_cached_s
        is_measured = running > 1 and wait_s is not None
        cached_s = compute_s + wait_s if is_measured else max(compute_s, times.compute_s + times.wait_cached_s)  # type: ignore[operator]
        # What was measured with some noise may say otherwise, but nothing comes later from the cache than from storage.
        return min(iterations * cached_s, self._cold_s(number, running)) if beside else iterations * cached_s

    def _together_s(self, number: int, group: Sequence[int], running: int) -> float:
        times, iterations = self._jobs[number].times, self._jobs[number].iterations
        if times.wait_both_cold_s is None:
            return max(self._cold_s(one, running) for one in group)
        return iterations * (self._compute_s(number, running) + times.wait_both_cold_s)

    def _apart_s(self, number: int, other: int, running: int) -> float:
        times, iterations = self._jobs[number].times, self._jobs[number].iterations
        compute_s = self._compute_s(number, running)
        wait_s = times.wait_both_cold_s if times.wait_apart_s is None else times.wait_apart_s
        if wait_s is not None:
            return iterations * (compute_s + wait_s)
        if times.wait_cold_s and self._jobs[other].times.wait_cold_s:  # the link is all used: each gets half of it
            return 2 * iterations * (times.compute_s + times.wait_cold_s)
        return self._cold_s(number, running)
