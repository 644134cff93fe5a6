"""When jobs are to start, from what was measured of them; and which of the others each start is measured by.

A start is kept by progress, not by the clock: a job begins when another one has got so far. Offsets count from first batch
to first batch, so a job is started earlier, by as long as it takes to its first batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.cache.shelf import Shelf
from stoker.decide.pace import IterationTimes, StaggerJob
from stoker.decide.side_by_side import SideBySide
from stoker.decide.stagger import StaggerOutcome, outcome_of, stagger, stagger_many
from stoker.errors import ConfigError
from stoker.run.together.catalogue import Beside, Solo
from stoker.run.together.jobs import TogetherJob, letter
from stoker.run.together.values import with_one_storage
from stoker.units import format_bytes

_LEAST_CACHED = 0.01
_SPARE = 0.5
"""Of its start-up: by so much earlier than it needs a job is started, as start-ups differ. It is held until its moment."""
_AT_ONCE = 0.01
"""Of the makespan: jobs whose first batches are to be so near each other begin together."""


Curves = tuple[tuple[str, tuple[tuple[float, ...], ...]], ...]
"""For each order of a pair, by the letter of the first: corners with the offset, the makespan, and both jobs' times."""


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """A moment, told by how far a job has got."""

    job: int
    passes: float
    """Over the data."""


@dataclass(frozen=True, slots=True)
class JobStart:
    """When a job is started, and when its loop may go on from its first batch; None: as soon as it can."""

    number: int
    delay_s: float
    """From now on, as predicted."""
    after: ProgressMark | None
    """None: after `delay_s`, because no other job has a batch by then."""
    held: ProgressMark | None
    spare_s: float = 0.0
    """By how much earlier than after `delay_s` it is started if it can be held."""


@dataclass(frozen=True, slots=True)
class TogetherPlan:
    """Starts, and what is predicted for them."""

    jobs: tuple[TogetherJob, ...]
    solo: tuple[Solo, ...]
    outcome: StaggerOutcome
    simultaneous_s: float
    sequential_s: float
    starts: tuple[JobStart, ...]
    """In the order of the starts."""
    curves: Curves
    lines: tuple[tuple[tuple[float, float], ...], ...]
    """How many passes each job has made, moment by moment, as predicted."""
    cached: float
    ready: float
    stage: SideBySide
    elapsed_s: float | None = None
    """How long one of them runs already, as predicted for how far it has got; None: none runs."""

    @property
    def order(self) -> list[str]:
        """The jobs by their first batches."""
        starts, shown = self.outcome.starts_s, {name for name, _ in self.curves}
        numbers = range(len(starts))
        in_turn = sorted(numbers, key=lambda number: (starts[number], letter(number) not in shown))
        return [letter(number) for number in in_turn]

    @property
    def offset_s(self) -> float:
        """How much later the last job gets its first batch."""
        return max(self.outcome.starts_s)

    @property
    def delays_s(self) -> list[float]:
        """How much later than the first, or than now beside one that runs, each job is to be started."""
        delays_s = {start.number: max(0.0, start.delay_s) for start in self.starts}
        return [delays_s[number] for number in range(len(self.jobs))]

    @property
    def dataset_bytes(self) -> float:
        """What an epoch reads."""
        return max(solo.samples * solo.sample_bytes for solo in self.solo)

    def starts_if(self, slower: float) -> tuple[JobStart, ...]:
        """The starts if start-ups take so many times as long as they did when they were measured."""
        startups_s = [slower * one.startup_s for one in self.solo]
        return _starts(self.stage, self.outcome, startups_s, self.elapsed_s)

    def if_late(self, who: Sequence[int]) -> StaggerOutcome:
        """What becomes of jobs of which some run, if those that have to be started take as much longer as is spared."""
        now_s = self.elapsed_s or 0.0
        starts_s = [
            start if number in who else max(start, now_s + (1 + _SPARE) * its.startup_s)
            for number, (start, its) in enumerate(zip(self.outcome.starts_s, self.solo, strict=True))
        ]
        return outcome_of(self.stage, self.stage.play(starts_s))

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "version": 1,
            "order": self.order,
            "offset_s": self.offset_s,
            "starts_s": list(self.outcome.starts_s),
            "delays_s": self.delays_s,
            "predicted": {
                "makespan_s": self.outcome.makespan_s,
                "times_s": list(self.outcome.times_s),
                "utilisation": self.outcome.utilisation,
                "bytes_storage": self.outcome.datasets_read * self.dataset_bytes,
            },
            "simultaneous_s": self.simultaneous_s,
            "sequential_s": self.sequential_s,
            "cached": self.cached,
            "ready": self.ready,
            "jobs": [{"name": job.name, "epochs": job.epochs} for job in self.jobs],
        }


def make_plan(
    jobs: Sequence[TogetherJob],
    solo: Sequence[Solo],
    beside: Sequence[Sequence[Beside]],
    cache_bytes: int,
    *,
    objective: str,
    ready: float,
    runs: int | None = None,
    elapsed_s: float = 0.0,
    starts_s: Sequence[float] | None = None,
    begun_s: Mapping[int, float] | None = None,
) -> TogetherPlan:
    """Find the best starts, unless they are given.

    `beside` has what is known of each job beside others. If one `runs` already, for `elapsed_s`, the others are started
    from now on, but for those that have begun, too: so much later than it.
    """
    solo = with_one_storage(solo)
    whole = max(one.samples * one.sample_bytes for one in solo)
    check_cache(cache_bytes, whole)
    cached = min(1.0, cache_bytes / whole)
    times = [times_of(one, some) for one, some in zip(solo, beside, strict=True)]
    staggered = [StaggerJob(its, job.epochs, one.iterations) for its, job, one in zip(times, jobs, solo, strict=True)]
    stage = SideBySide(staggered, cached=cached, ready=ready)
    curves: Curves = ()
    begun_s = {} if runs is None else {runs: 0.0, **(begun_s or {})}
    earliest = None if runs is None else [begun_s.get(job, elapsed_s + one.startup_s) for job, one in enumerate(solo)]
    if earliest is not None and len(begun_s) == len(jobs):
        starts_s = earliest
    if len(jobs) == 2:
        pair = stagger(
            *times,
            epochs=(jobs[0].epochs, jobs[1].epochs),
            iterations=(solo[0].iterations, solo[1].iterations),
            cached=cached,
            ready=ready,
            elapsed_s=max(earliest or [0.0]),
            runs=letter(runs or 0),
            objective=objective,
        )
        outcome, simultaneous_s, sequential_s = pair.outcome, pair.simultaneous_s, pair.sequential_s
        curves = tuple((first, tuple(_corner(stage, first, corner) for corner in line)) for first, line in pair.curves)
    else:
        many = stagger_many(
            staggered, cached=cached, ready=ready, objective=objective, earliest_s=earliest, running=begun_s
        )
        outcome, simultaneous_s, sequential_s = many.outcome, many.simultaneous_s, many.sequential_s
    if starts_s is not None:
        outcome = outcome_of(stage, stage.play(starts_s))
    starts = _starts(stage, outcome, [one.startup_s for one in solo], None if runs is None else elapsed_s)
    return TogetherPlan(
        jobs=tuple(jobs),
        solo=tuple(solo),
        outcome=outcome,
        simultaneous_s=simultaneous_s,
        sequential_s=sequential_s,
        starts=starts,
        curves=curves,
        lines=_lines(stage, outcome),
        cached=cached,
        ready=min(ready, cached),
        stage=stage,
        elapsed_s=None if runs is None else elapsed_s,
    )


def check_cache(cache_bytes: int, whole: float) -> None:
    """Raise if a cache is so small that no job would gain by what another has read."""
    if cache_bytes < _LEAST_CACHED * whole:
        raise ConfigError(
            f"a cache of {format_bytes(cache_bytes)} holds next to nothing of {format_bytes(whole)}: no job would gain by "
            "another one. Ask for more with --cache"
        )


def _corner(stage: SideBySide, first: str, corner: tuple[float, float]) -> tuple[float, ...]:
    offset_s, makespan_s = corner
    return offset_s, makespan_s, *stage.play((0.0, offset_s) if first == "A" else (offset_s, 0.0)).times_s


def _lines(stage: SideBySide, outcome: StaggerOutcome) -> tuple[tuple[tuple[float, float], ...], ...]:
    played = stage.play(outcome.starts_s)
    moments = sorted({at_s for phase in played.phases for at_s in (phase.begin_s, phase.end_s)})
    return tuple(
        tuple((at_s, stage.done_at(played, number, at_s)) for at_s in moments if start_s <= at_s <= end_s * (1 + 1e-9))
        for number, (start_s, (end_s, _)) in enumerate(zip(played.starts_s, played.ends, strict=True))
    )


def times_of(solo: Solo, beside: Sequence[Beside]) -> IterationTimes:
    """What one iteration takes; beside several others, as beside the one that costs it most."""

    def most(name: str) -> float | None:
        values = [value for one in beside if (value := getattr(one, name)) is not None]
        return max(values, default=None)

    compute_s = most("compute_beside_s")
    half_s = 2 * (solo.compute_s + solo.wait_cold_s) - (compute_s or solo.compute_s)
    return IterationTimes(
        compute_s=solo.compute_s,
        wait_cold_s=solo.wait_cold_s,
        wait_cached_s=solo.wait_cached_s,
        wait_both_cold_s=most("wait_both_cold_s"),
        wait_beside_s=most("wait_beside_s"),
        compute_beside_s=compute_s,
        wait_apart_s=max(0.0, half_s) if solo.wait_cold_s > solo.wait_cached_s else None,
    )


def alone_s(solo: Solo, passes: float, ready: float = 0.0) -> float:
    """How long a job takes alone for some passes over data of which a part is in the cache."""
    cold = max(0.0, min(passes, 1.0) - ready)
    return solo.iterations * (
        passes * (solo.compute_s + solo.wait_cached_s) + cold * (solo.wait_cold_s - solo.wait_cached_s)
    )


def ready_part(data: str, whole: float) -> float:
    """How much of so many bytes the cache of a name holds by now."""
    found = [cache for cache in Shelf().caches() if cache.folder.name == data]
    return min(1.0, found[0].stats.payload_bytes / whole) if found and whole else 0.0


def _starts(
    stage: SideBySide, outcome: StaggerOutcome, startups_s: Sequence[float], elapsed_s: float | None
) -> tuple[JobStart, ...]:
    begins = [start - startup for start, startup in zip(outcome.starts_s, startups_s, strict=True)]
    order = sorted(range(len(begins)), key=lambda number: begins[number])
    played = stage.play(outcome.starts_s)
    ends = [end for end, _ in played.ends]
    near_s = _AT_ONCE * outcome.makespan_s

    def progress(number: int, at_s: float) -> ProgressMark | None:
        """How far the one of the earlier jobs is by then that runs longest."""
        earlier = [one for one in order if one != number and outcome.starts_s[one] < at_s - near_s]
        longest = max(earlier, key=lambda one: ends[one], default=None)
        return None if longest is None else ProgressMark(longest, stage.done_at(played, longest, at_s))

    def first_batch(number: int) -> ProgressMark | None:
        """The first batch of a job that is to begin at the same time."""
        near = [one for one in order if one != number and abs(outcome.starts_s[one] - outcome.starts_s[number]) <= near_s]
        return ProgressMark(max(near, key=lambda one: begins[one]), 0.0) if near else None

    def start_of(number: int) -> JobStart:
        delay_s = begins[number] - (begins[order[0]] if elapsed_s is None else elapsed_s)
        held = progress(number, outcome.starts_s[number]) or first_batch(number)
        spare_s = 0.0 if held is None else _SPARE * startups_s[number]
        return JobStart(number, delay_s, progress(number, begins[number] - spare_s), held, spare_s)

    return tuple(start_of(number) for number in order)
