"""Jobs are started as planned, watched to their ends, and told of.

A job is started when another one has got so far that its own first batch comes at the right moment. If it comes too early,
its loop is held there. If a start-up takes longer than it did, later jobs are started earlier by as many times: the host is
busier than it was. A job that waits for another one goes on when that ends or gets no further, for whatever reason:
nothing waits for ever.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.run.together.calibrating import START_S, STUCK_S
from stoker.run.together.jobs import TogetherJob
from stoker.run.together.planning import JobStart, ProgressMark, TogetherPlan
from stoker.run.together.running import Running, ending

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class RealJob:
    """What became of a job; moments are seconds after the first batch of all."""

    name: str
    code: int | None
    first_s: float | None
    """Its first batch; None if it never came."""
    end_s: float
    passes: float
    """That it made over the data."""
    bytes_storage: int
    points: tuple[tuple[float, float], ...]
    """Its passes, moment by moment."""


@dataclass(frozen=True, slots=True)
class Real:
    """What happened."""

    jobs: tuple[RealJob, ...]

    @property
    def makespan_s(self) -> float:
        """From the first batch to the last end."""
        return max(job.end_s for job in self.jobs)

    @property
    def is_fine(self) -> bool:
        """Whether every job ended well; of one that was not started here, that is not known."""
        return all(not job.code for job in self.jobs)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        firsts = [job.first_s for job in self.jobs if job.first_s is not None]
        return {
            "makespan_s": self.makespan_s,
            "offset_s": max(firsts, default=0.0),
            "starts_s": [job.first_s for job in self.jobs],
            "times_s": [None if job.first_s is None else job.end_s - job.first_s for job in self.jobs],
            "bytes_storage": sum(job.bytes_storage for job in self.jobs),
            "codes": [job.code for job in self.jobs],
            "passes": [job.passes for job in self.jobs],
        }


class _Watched:
    """A job that runs, and its progress so far."""

    def __init__(self, run: Running, iterations: int, epochs: int) -> None:
        self.run = run
        self._iterations, self._batches = iterations, iterations * epochs
        self._over_at: float | None = None
        self._batches_seen, self._moved_at = 0, time.monotonic()
        self.first_at: float | None = None
        """When it went on from its first batch."""

    @property
    def passes(self) -> float:
        return 0.0 if self.run.seen is None else self.run.seen.batches / self._iterations

    @property
    def is_stuck(self) -> bool:
        """Whether it has made no progress for so long that nobody should wait for it any more, whatever the reason."""
        patience_s = START_S if self.run.first_at is None else STUCK_S
        return not self.run.is_paused and time.monotonic() - self._moved_at > patience_s

    def look(self) -> None:
        seen = self.run.look()
        if self.run.is_paused or (seen is not None and seen.batches != self._batches_seen):
            self._moved_at, self._batches_seen = time.monotonic(), 0 if seen is None else seen.batches
        if seen is not None and seen.batches >= self._batches and (seen.is_waiting or seen.is_over):
            self._over_at = seen.asked_at  # it asks for one more batch than there is

    def hold(self, is_held: bool) -> None:
        """Let its loop wait at its first batch, or go on from there."""
        run = self.run
        if run.first_at is None or self.first_at is not None:
            return
        if is_held:
            run.pause()
        else:
            run.go_on()
            self.first_at = run.first_at + run.paused_s

    def told(self, origin: float) -> RealJob:
        run, seen = self.run, self.run.seen
        first_at = self.first_at
        ended_at = run.ended_at or time.monotonic()
        # The process goes on for a moment after its last epoch, which is none of the plan's business.
        if not run.code and self._over_at is not None:
            ended_at = self._over_at
        return RealJob(
            run.name,
            run.code,
            None if first_at is None else first_at - origin,
            ended_at - origin,
            self.passes,
            0 if seen is None else seen.bytes_storage,
            tuple((max(at, first_at or at) - origin, batches / self._iterations) for at, batches in run.points),
        )


def conduct(
    plan: TogetherPlan,
    seed: int,
    cache_bytes: int,
    tell: Callable[[str], None],
    running: Mapping[int, Running],
) -> Real:
    """Start all jobs as planned, but for those that run already, and watch all until they have ended."""
    began_at = time.monotonic()
    jobs: dict[int, _Watched] = {}
    started: list[Running] = []
    held = {start.number: start.held for start in plan.starts}
    for number, run in running.items():
        jobs[number] = _Watched(run, plan.solo[number].iterations, plan.jobs[number].epochs)
        held[number] = None
        started.append(run)
    waiting = [start for start in plan.starts if start.number not in running]
    slower = 1.0
    with ending(started):
        while waiting or not all(job.run.is_over for job in jobs.values()):
            for number, job in jobs.items():
                job.look()
                job.hold(not _has_come(held[number], jobs))
            if (found := _slower(plan, jobs, running)) > slower:
                slower = found
                waiting = [start for start in plan.starts_if(slower) if start.number not in jobs]
            while waiting and _is_due(waiting[0], jobs, time.monotonic() - began_at):
                number = waiting.pop(0).number
                run = Running.start(plan.jobs[number], seed, cache_bytes)
                started.append(run)
                jobs[number] = _Watched(run, plan.solo[number].iterations, plan.jobs[number].epochs)
            tell(_progress(plan.jobs, jobs, waiting))
            time.sleep(_LOOK_S)
    firsts = [job.first_at for job in jobs.values() if job.first_at is not None]
    origin = min(firsts, default=began_at)
    return Real(tuple(jobs[number].told(origin) for number in sorted(jobs)))


def _slower(plan: TogetherPlan, jobs: Mapping[int, _Watched], running: Mapping[int, Running]) -> float:
    """How many times as long start-ups take today as when they were measured, so far. Those that come will, too."""
    now = time.monotonic()
    started = {number: job.run for number, job in jobs.items() if number not in running}
    # One that has ended without a batch says nothing: it would take longer for ever.
    told = {number: run for number, run in started.items() if run.first_at is not None or not run.is_over}
    spans_s = {number: (run.first_at or now) - run.began_at for number, run in told.items()}
    return max((span_s / max(plan.solo[number].startup_s, 0.1) for number, span_s in spans_s.items()), default=1.0)


def _is_due(start: JobStart, jobs: dict[int, _Watched], elapsed_s: float) -> bool:
    if jobs and all(job.run.is_over for job in jobs.values()):
        return True
    return elapsed_s >= start.delay_s - start.spare_s if start.after is None else _has_come(start.after, jobs)


def _has_come(moment: ProgressMark | None, jobs: dict[int, _Watched]) -> bool:
    if moment is None:
        return True
    job = jobs.get(moment.job)
    return job is not None and (job.run.is_over or job.is_stuck or (job.passes > 0 and job.passes >= moment.passes))


def _progress(jobs: Sequence[TogetherJob], running: dict[int, _Watched], waiting: Sequence[JobStart]) -> str:
    parts = []
    for number, job in enumerate(jobs):
        if number in running:
            done = min(1.0, running[number].passes / job.epochs)
            parts.append(f"{job.name} {'has ended' if running[number].run.is_over else _percent(done)}")
    for start in waiting:
        after, until = start.after, ""
        if after is not None:
            its = jobs[after.job]
            until = f" until {its.name} is at {_percent(after.passes / its.epochs)}"
        parts.append(f"{jobs[start.number].name} waits{until}")
    return ", ".join(parts)


def _percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")
