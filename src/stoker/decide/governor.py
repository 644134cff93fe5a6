"""When workers move between the ranks of a host, and between reading and preparing. Pure: what is seen in, moves out.

A rank's batches are read, then prepared. Where different workers do that, both stages work at the same time on
different batches, and each must keep pace with training by itself: the rank has two places for workers. Where each
worker reads and prepares in turn, it has one. `assign` divides the workers among all places as if each were a queue of
its own. What a batch will cost is predicted from what is queued; meters correct the curves (`loading.correction`)
before they come here.

    target = assign(places)
    nothing moves   before the period is over, or
                    unless the time by which the slowest is late falls by the part `worth` of it

A place that has more than it needs keeps it until another one needs it, so that the same input never moves anything
twice. A place that has something queued and nobody to do it is late for ever, so that it gets a worker however small
the gain. Where there are fewer workers than such places nothing is decided here: then they have to serve all in turn.
There is no clock here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stoker.decide.loading import Seconds
from stoker.decide.threads import Queue, assign

WorkerStage = Literal["reading", "preparing", "both"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker may be."""

    rank: int
    stage: WorkerStage


@dataclass(frozen=True, slots=True)
class RankQueue:
    """How many batches are queued for one rank; for each stage the seconds for one of them, by the number of workers."""

    queued: int
    seconds: Mapping[WorkerStage, Seconds]


@dataclass(frozen=True, slots=True)
class Move:
    """Workers that go from one place to another. From None they are new, to None they go."""

    source: Place | None
    target: Place | None
    count: int


@dataclass(frozen=True, slots=True)
class Governed:
    """What is to be done, and why."""

    moves: tuple[Move, ...]
    late_s: float
    """By how much the slowest rank will be late in each batch, if nothing moves."""
    late_after_s: float
    reason: str


def govern(
    ranks: Sequence[RankQueue],
    current: Mapping[Place, int],
    *,
    budget: int,
    train_s: float,
    since_s: float,
    period_s: float = 0.5,
    worth: float = 0.1,
) -> Governed:
    """Who moves now. `since_s` has passed since workers last moved, `train_s` is what the loop takes for a batch."""
    places = [Place(number, stage) for number, rank in enumerate(ranks) for stage in rank.seconds]
    queues = [Queue(_table(ranks[at.rank].seconds[at.stage], budget), ranks[at.rank].queued) for at in places]
    gone = [place for place in current if place not in places]  # ranks that ended: their workers count
    places, queues = places + gone, queues + [Queue(np.zeros(budget + 1), 0.0) for _ in gone]
    now = [current.get(place, 0) for place in places]
    asking = sum(queue.asks for queue in queues)
    late_s = _late(queues, now, train_s)
    is_over = sum(now) > budget
    target, reason = now, ""
    if asking > budget:
        reason = f"{budget} workers for {asking} places: they serve all in turn"
    elif since_s < period_s and not is_over:
        reason = f"workers moved {since_s:.2g} s ago"
    else:
        wanted = assign(queues, train_s, budget)
        if is_over or _late(queues, wanted.workers, train_s) < (1 - worth) * late_s:
            target, reason = list(wanted.workers), wanted.reason
        else:
            reason = "too little would be gained" if late_s else "nobody is late"
    after = _kept(now, target, budget)
    return Governed(_moves(places, now, after), late_s, _late(queues, after, train_s), reason)


def _table(seconds: Seconds, budget: int) -> Seconds:
    """Times for as many as there are. Who would make it slower idles."""
    known: Seconds = np.minimum.accumulate(seconds[: budget + 1])
    return known if len(known) > budget else np.pad(known, (0, budget + 1 - len(known)), mode="edge")


def _late(queues: Sequence[Queue], workers: Sequence[int], train_s: float) -> float:
    times = [float(queue.seconds[min(count, len(queue.seconds) - 1)]) for queue, count in zip(queues, workers, strict=True)]
    return max(
        (time - train_s for time, queue in zip(times, queues, strict=True) if queue.asks and time > train_s), default=0.0
    )


def _kept(now: Sequence[int], target: Sequence[int], budget: int) -> list[int]:
    """The numbers after the moves: what is needed, and what is left stays where it is, or goes if it is over the budget."""
    after = [max(have, need) for have, need in zip(now, target, strict=True)]
    excess = sum(after) - budget
    while excess > 0:  # from the place that has most beyond its need
        number = max(range(len(after)), key=lambda number: (after[number] > 0, after[number] - target[number], -number))
        after[number] -= 1
        excess -= 1
    return after


def _moves(places: Sequence[Place], now: Sequence[int], after: Sequence[int]) -> tuple[Move, ...]:
    changes = [(place, then - have) for place, have, then in zip(places, now, after, strict=True)]
    leaving: list[Place | None] = [place for place, change in changes for _ in range(-change)]
    coming: list[Place | None] = [place for place, change in changes for _ in range(change)]
    most = max(len(leaving), len(coming))
    pairs = zip(leaving + [None] * (most - len(leaving)), coming + [None] * (most - len(coming)), strict=True)
    counted: dict[tuple[Place | None, Place | None], int] = {}
    for pair in pairs:
        counted[pair] = counted.get(pair, 0) + 1
    return tuple(Move(source, target, count) for (source, target), count in counted.items())
