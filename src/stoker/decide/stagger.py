"""When to start jobs that read the same data from slow storage through one cache. Pure.

The makespan is piecewise linear in an offset, and `side_by_side` says where each piece ends. So the best offset is not
searched for: it is an end of a piece, the crossing of two jobs' ends in one, or where the makespan is as long as it may be.
With more than two jobs each start is chosen so, in turn, until none gets better.

Objectives: "makespan" is the least makespan, and among equals the least sum of the jobs' times; "balanced" is the least sum
of the jobs' times whose makespan is within 1 % of the least; "times" is the least sum of the jobs' times.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.decide.pace import IterationTimes, StaggerJob
from stoker.decide.side_by_side import PairPhase, PlayedJobs, SideBySide, utilisation
from stoker.errors import ConfigError

OBJECTIVES = {"makespan": 0.0, "balanced": 0.01, "times": math.inf}
"""By how much a makespan may be longer than the least."""
_EQUAL = 1e-9
_STEP = 1e-7
"""Of the whole time; pieces that are narrower are passed over."""
_ALL_ORDERS = 4
"""So many jobs are tried in every order, of more each is tried as the first."""
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class StaggerOutcome:
    """What is predicted for jobs with given starts."""

    starts_s: tuple[float, ...]
    makespan_s: float
    times_s: tuple[float, ...]
    utilisation: float
    """The part of the jobs' time in which they compute."""
    datasets_read: float
    """What comes from storage, in whole datasets."""
    phases: tuple[PairPhase, ...] = ()


@dataclass(frozen=True, slots=True)
class Stagger:
    """The best start of a pair: `order` names the job that begins, and the other follows `offset_s` later."""

    offset_s: float
    order: str
    outcome: StaggerOutcome
    simultaneous_s: float
    """The makespan if both begin at once."""
    sequential_s: float
    """The makespan if the second begins when the first has ended, in the same order."""
    curves: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    """All corners of the makespan over the offset, for each order of the jobs that was possible."""
    _stage: Any = field(repr=False)

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return self.outcome.makespan_s

    @property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """The corners of the makespan over the offset, in the best order."""
        return dict(self.curves)[self.order]

    def makespan(self, offset_s: float) -> float:
        """The makespan of another offset, in this order."""
        return self.at(offset_s).makespan_s

    def at(self, offset_s: float) -> StaggerOutcome:
        """All that is predicted for another offset, in this order; the jobs are named as they were given."""
        if not (math.isfinite(offset_s) and offset_s >= 0):
            raise ConfigError(f"an offset is a number of seconds that is not negative, not {offset_s}")
        starts = (0.0, offset_s) if self.order == "A" else (offset_s, 0.0)
        return outcome_of(self._stage, self._stage.play(starts))


@dataclass(frozen=True, slots=True)
class StaggerMany:
    """The best starts of some jobs, as they were given; the first to begin does so at 0."""

    outcome: StaggerOutcome
    simultaneous_s: float
    sequential_s: float

    @property
    def starts_s(self) -> tuple[float, ...]:
        """When each job begins."""
        return self.outcome.starts_s

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return self.outcome.makespan_s


def stagger(
    a: IterationTimes,
    b: IterationTimes,
    *,
    epochs: tuple[int, int] = (1, 1),
    iterations: tuple[int, int],
    cached: float = 1.0,
    ahead: int = 0,
    elapsed_s: float = 0.0,
    runs: str = "A",
    objective: str = "makespan",
    ready: float = 0.0,
) -> Stagger:
    """Find the best offset of a pair, in either order.

    `cached` is the part of the data that the cache can hold, `ready` the part that it holds already, `ahead` how many
    batches the jobs prefetch. If one runs already (`runs` names it), the other cannot begin before `elapsed_s`.
    """
    if len(epochs) != 2 or len(iterations) != 2:
        raise ConfigError(f"epochs and iterations have a number for each of two jobs, not {epochs} and {iterations}")
    stage = _stage([StaggerJob(a, epochs[0], iterations[0]), StaggerJob(b, epochs[1], iterations[1])], cached, ready, ahead)
    _check(objective)
    if not (math.isfinite(elapsed_s) and elapsed_s >= 0):
        raise ConfigError(f"elapsed_s must be a number of seconds that is not negative, not {elapsed_s}")
    firsts = (runs,) if elapsed_s else ("A", "B")
    lines = {name: _corners(stage, (0.0, 0.0), 1 if name == "A" else 0, elapsed_s) for name in firsts}
    order, best = _best(stage, lines, objective)
    second = 1 if order == "A" else 0
    if elapsed_s:  # offsets that have gone by are shown, too
        lines = {runs: _corners(stage, (0.0, 0.0), second)}
    return Stagger(
        offset_s=best.starts_s[second],
        order=order,
        outcome=outcome_of(stage, best),
        simultaneous_s=stage.play((0.0, 0.0)).makespan_s,
        sequential_s=_one_after_another(stage, (1 - second, second)),
        curves=tuple((name, _told(line)) for name, line in lines.items()),
        _stage=stage,
    )


def stagger_many(
    jobs: Sequence[StaggerJob | tuple[IterationTimes, int, int]],
    *,
    cached: float = 1.0,
    ahead: int = 0,
    objective: str = "makespan",
    ready: float = 0.0,
    earliest_s: Sequence[float] | None = None,
    running: Collection[int] = (),
) -> StaggerMany:
    """Find good starts of any number of jobs, each with its times, epochs, and iterations in an epoch.

    If some run already, `earliest_s` says when each can begin, and when those that are `running` have: the first at 0.
    """
    _check(objective)
    stage = _stage([StaggerJob(*job) for job in jobs], cached, ready, ahead)
    numbers = range(len(jobs))
    orders: list[tuple[int, ...]] = (
        list(itertools.permutations(numbers))
        if len(jobs) <= _ALL_ORDERS
        else [(first, *(one for one in numbers if one != first)) for first in numbers]
    )
    at_once = stage.play([0.0] * len(jobs))
    least_s = list(earliest_s or at_once.starts_s)
    if earliest_s is not None:
        orders = [order for order in orders if least_s[order[0]] == 0]
    found = [stage.play(least_s), *(_improved(stage, order, objective, least_s, running) for order in orders)]
    _, best = _best(stage, {str(number): [played] for number, played in enumerate(found)}, objective)
    return StaggerMany(
        outcome=outcome_of(stage, best),
        simultaneous_s=at_once.makespan_s,
        sequential_s=min(_one_after_another(stage, order) for order in orders),
    )


def outcome_of(stage: SideBySide, played: PlayedJobs) -> StaggerOutcome:
    """What people want to know of jobs that were played through."""
    return StaggerOutcome(
        starts_s=tuple(start - min(played.starts_s) for start in played.starts_s),
        makespan_s=played.makespan_s,
        times_s=played.times_s,
        utilisation=utilisation(played, stage.jobs),
        datasets_read=played.datasets_read,
        phases=played.phases,
    )


def _stage(jobs: Sequence[StaggerJob], cached: float, ready: float, ahead: int) -> SideBySide:
    for name, value in (("cached", cached), ("ready", ready)):
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} is a part of the data, from 0 to 1, not {value}")
    if not jobs:
        raise ConfigError("there is no job to start: one is needed")
    if any(job.epochs < 1 or job.iterations < 1 for job in jobs) or ahead < 0:
        raise ConfigError("a job has 1 epoch or more, and an epoch 1 iteration or more; ahead is not negative")
    return SideBySide(jobs, cached=cached, ready=ready, ahead=ahead)


def _check(objective: str) -> None:
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective is one of {', '.join(OBJECTIVES)}, not {objective!r}")


def _corners(stage: SideBySide, starts_s: Sequence[float], moved: int, least_s: float = 0.0) -> list[PlayedJobs]:
    """What becomes of the jobs at every offset of one of them at which a slope changes, in ascending order."""
    others = [start for number, start in enumerate(starts_s) if number != moved]
    most_s = max([least_s, max(others, default=0.0) + sum(stage.alone_s(number) for number in range(len(starts_s)))])
    step_s = _STEP * max(most_s, 1e-6)
    corners, at_s = [], least_s
    while True:
        played = stage.play([at_s if number == moved else start for number, start in enumerate(starts_s)], moved)
        corners.append(played)
        begins_last = at_s >= max((end for number, (end, _) in enumerate(played.ends) if number != moved), default=0.0)
        if begins_last or at_s >= most_s:
            return corners
        next_s = min(most_s, at_s + max(step_s, played.holds_s))
        corners += [
            stage.play([at_s + way_s if number == moved else start for number, start in enumerate(starts_s)], moved)
            for way_s in _crossings(played, next_s - at_s)
        ]
        at_s = next_s


def _told(corners: Sequence[PlayedJobs]) -> tuple[tuple[float, float], ...]:
    """Offsets and makespans of corners; of those that only rounding tells apart, the first."""
    told = [(max(one.starts_s), one.makespan_s) for one in corners]
    near_s = 10 * _STEP * told[-1][0]
    return tuple(one for number, one in enumerate(told) if not number or one[0] - told[number - 1][0] > near_s)


def _crossings(played: PlayedJobs, width_s: float) -> Iterator[float]:
    """Where two jobs end at the same time, within one piece."""
    found = set()
    for (end, slope), (other, other_slope) in itertools.combinations(played.ends, 2):
        if slope != other_slope and 0 < (way_s := (other - end) / (slope - other_slope)) < width_s:
            found.add(way_s)
    yield from sorted(found)


def _best(stage: SideBySide, lines: Mapping[str, Sequence[PlayedJobs]], objective: str) -> tuple[str, PlayedJobs]:
    """The best of all corners, or between two of them, where the makespan is as long as it may be; and its line."""
    least_s = min(played.makespan_s for corners in lines.values() for played in corners)
    allowed_s = least_s * (1 + max(_EQUAL, OBJECTIVES[objective]))
    good = [(name, played) for name, corners in lines.items() for played in corners if played.makespan_s <= allowed_s]
    for name, corners in lines.items():
        for one, other in itertools.pairwise(corners):
            if (one.makespan_s <= allowed_s) != (other.makespan_s <= allowed_s):
                part = (allowed_s - one.makespan_s) / (other.makespan_s - one.makespan_s)
                pairs = zip(one.starts_s, other.starts_s, strict=True)
                good.append((name, stage.play([start + part * (end - start) for start, end in pairs])))
    return min(good, key=lambda found: _rank(found[1], least_s))


def _rank(played: PlayedJobs, scale_s: float) -> tuple[float, ...]:
    """The least sum of times; if that is the same, the least makespan, and then the earliest start."""
    return (
        round(sum(played.times_s) / scale_s, 7),
        round(played.makespan_s / scale_s, 7),
        round(max(played.starts_s) / scale_s, 7),
    )


def _improved(
    stage: SideBySide, order: Sequence[int], objective: str, least_s: Sequence[float], running: Collection[int]
) -> PlayedJobs:
    """Starts in about this order: each job is added at its best moment, and then moved while that makes it better."""
    starts: list[float] = []
    played = PlayedJobs((), (), 0.0, 0.0, ())
    for count in range(1, len(order) + 1):
        some = stage.only(order[:count])
        starts.append(least_s[order[count - 1]])
        rounds = _ROUNDS if count == len(order) else 1
        for _ in range(rounds):
            before = list(starts)
            for moved in range(count - 1, 0, -1):
                if order[moved] in running:
                    continue
                _, played = _best(some, {"": _corners(some, starts, moved, least_s[order[moved]])}, objective)
                starts = list(played.starts_s)
            if starts == before:
                break
    return stage.play([starts[order.index(number)] for number in range(len(order))])


def _one_after_another(stage: SideBySide, order: Sequence[int]) -> float:
    at_s, starts = 0.0, []
    for count in range(1, len(order) + 1):
        starts.append(at_s)
        at_s = max(end for end, _ in stage.only(order[:count]).play(starts).ends)
    return at_s
