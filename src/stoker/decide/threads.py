"""Which worker serves which GPU: Lobster's assignment, corrected and with a budget for all. Pure and deterministic.

A GPU's iteration takes T_i = max(T_train, T_L,i(n_i) + T_P): loading with n_i workers and preparing run beside the
training of the batch before. All GPUs wait for the slowest. What is minimised, in this order:

    1. T_max, the time of the iteration: what is left of Eq. 2, |T_L + T_P - T_train|, where data is late. Being early
       costs nobody anything, so that the other half of the absolute value is no aim, but see 2.
    2. T_max - T_min, Eq. 3, by giving each queue no more workers than it needs to be done by T_max: the rest is spare.

With d(n) = T_L(n) + T_P - T_train, positive if late: `assign` starts in proportion to the queues. If one would be late,
each queue looks for its number by bisection (Algorithm 1, corrected), then the budget is kept: workers are taken from
the most negative d, and as long as that makes the slowest faster, more are taken there and given to the most positive
d.

A worker that serves several queues in turn is counted in parts: all numbers may be quarters of workers, say.

Curves may fall and rise again. So the search goes over `rungs`, the numbers that are better than all smaller ones: on
these d falls, bisection is exact, and the exchange ends only where no assignment is better (docs/design/threads.md has
the argument).
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.decide.loading import SampleTime, Seconds
from stoker.errors import ConfigError

THRESHOLD = 0.05
"""The search for one queue ends where loading and training differ by less than this part of the training time."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What one GPU waits for."""

    seconds: Seconds
    """Loading of its next batch, by the number of workers from 0; all zeros if there is nothing to load."""
    length: float = 1.0
    """Requests that wait; 0 is an empty queue."""
    other_s: float = 0.0
    """What comes on top: preparing, and how far behind it is already."""

    @property
    def asks(self) -> bool:
        """Whether there is something to load."""
        return self.length > 0 and bool(self.seconds[-1] > 0)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Workers for each queue, and what is expected of them."""

    workers: tuple[int, ...]
    spare: int
    """What would make nothing faster."""
    iteration_s: float
    """T_max; infinite if there are fewer workers than queues."""
    gap_s: float
    """T_max - T_min."""
    reason: str


@dataclass(frozen=True, slots=True)
class Division:
    """A host's workers, some for preparing and the others by queue."""

    preparing: int
    loading: Assignment
    prepare_s: float
    """Preparing of one batch for each GPU, by these."""
    reason: str


def in_proportion(lengths: Sequence[float], budget: int) -> list[int]:
    """Workers in proportion to the queues, at least one where there is something; the longest first if they are too few."""
    asking = [number for number, length in enumerate(lengths) if length > 0]
    given = [0] * len(lengths)
    if budget <= len(asking):
        for number in sorted(asking, key=lambda number: (-lengths[number], number))[: max(0, budget)]:
            given[number] = 1
        return given
    total = math.fsum(lengths[number] for number in asking)
    wanted = {number: budget * (lengths[number] / total) for number in asking}
    for number in asking:
        given[number] = max(1, int(wanted[number]))
    while sum(given) > budget:  # those who had less than one made up to one
        given[max(asking, key=lambda number: (given[number] - wanted[number] if given[number] > 1 else -1, -number))] -= 1
    for number in sorted(asking, key=lambda number: (given[number] - wanted[number], number))[: budget - sum(given)]:
        given[number] += 1
    return given


def assign(queues: Sequence[Queue], train_s: float, budget: int, threshold: float = THRESHOLD) -> Assignment:
    """Workers for the queues of a host's GPUs, not more than the budget."""
    if budget < 0 or not train_s > 0:
        raise ConfigError(f"workers are 0 or more and training takes some time, not {budget} and {train_s}")
    rungs = [_Rungs(queue, budget) for queue in queues]
    start = in_proportion([queue.length if queue.asks else 0.0 for queue in queues], budget)
    asking = sum(one.asks for one in rungs)
    places = [one.at_most(count) for one, count in zip(rungs, start, strict=True)]
    if asking > budget:
        few = f"{budget} workers for {asking} queues: the longest first"
        return _assignment(rungs, places, train_s, budget, few)
    late = [number for number, one in enumerate(rungs) if one.times[places[number]] > train_s]
    if not late:
        return _assignment(rungs, places, train_s, budget, "no queue would be late: in proportion to their lengths")
    places = [one.search(place, train_s, threshold) for one, place in zip(rungs, places, strict=True)]
    _keep_budget(rungs, places, budget)
    _exchange(rungs, places, train_s, budget)
    slowest = max(train_s, *(one.times[place] for one, place in zip(rungs, places, strict=True)))
    places = [one.enough(slowest) for one in rungs]
    who = ", ".join(map(str, late))
    reason = f"late with workers in proportion: queue{'s' if len(late) > 1 else ''} {who}"
    return _assignment(rungs, places, train_s, budget, reason)


def divide(
    queues: Sequence[Queue], train_s: float, workers: int, prepare: SampleTime, samples: float, threshold: float = THRESHOLD
) -> Division:
    """A host's workers for preparing and for loading, in Lobster's two steps.

    `samples` are those of one batch for each GPU: those who prepare serve all. First as many prepare as is best for
    preparing. Then, while a batch is late, one of them loads instead, as far as the iteration gets shorter by it: it no
    longer does where preparing has become the bottleneck. Where it is not late, the largest number that prepares in
    time stays.
    """
    asking = sum(queue.asks for queue in queues)
    if workers < asking + 1:
        raise ConfigError(f"{workers} workers cannot prepare and load for {asking} queues: give at least {asking + 1}")
    peak = min(prepare.best_workers, workers - asking)
    prepare_s = (samples * prepare.table(peak)).tolist()
    load_s = _shortest([_Rungs(queue, workers - 1) for queue in queues], workers - 1)

    def iteration_s(preparing: int) -> float:
        return max(train_s, float(load_s[workers - preparing] + prepare_s[preparing]))

    best = min(range(peak, 0, -1), key=iteration_s)
    asked = [replace(queue, other_s=queue.other_s + prepare_s[best]) for queue in queues]
    reason = f"preparing is fastest with {peak}" + (f"; {peak - best} of them load instead" if best < peak else "")
    return Division(best, assign(asked, train_s, workers - best, threshold), prepare_s[best], reason)


def _shortest(rungs: Sequence["_Rungs"], budget: int) -> list[float]:
    """The time of the slowest queue for every number of workers: one more goes to the slowest, until it has its best."""
    found = [math.inf] * (budget + 1)
    places = [one.at_most(1) for one in rungs]
    used = sum(one.counts[place] for one, place in zip(rungs, places, strict=True))
    slow = [(-one.times[place], number) for number, (one, place) in enumerate(zip(rungs, places, strict=True))]
    heapq.heapify(slow)
    while slow and used <= budget:
        time, number = slow[0]
        found[used:] = [-time] * (budget + 1 - used)
        one, place = rungs[number], places[number]
        if place + 1 == len(one.counts):
            break
        used += one.counts[place + 1] - one.counts[place]
        places[number] = place + 1
        heapq.heapreplace(slow, (-one.times[place + 1], number))
    return found if slow else [0.0] * (budget + 1)


class _Rungs:
    """The numbers of workers of one queue that are worth having, and its times with these. Longer times come first."""

    def __init__(self, queue: Queue, budget: int) -> None:
        if len(queue.seconds) <= budget:
            raise ConfigError(f"a queue has times for {len(queue.seconds) - 1} workers only, of {budget}")
        loading = queue.seconds[: budget + 1].tolist()
        self.asks = queue.asks
        if not self.asks:
            self.counts, self.times = [0], [0.0 if queue.length <= 0 else queue.other_s]
            return
        self.counts, self.times, best = [0], [math.inf], math.inf
        for count, time in enumerate(loading):
            if count and time < best:
                best = time
                self.counts.append(count)
                self.times.append(time + queue.other_s)

    def at_most(self, count: int) -> int:
        """The place of the best number that is not larger."""
        return max(place for place, rung in enumerate(self.counts) if rung <= count)

    def enough(self, slowest_s: float) -> int:
        """The first place that is not slower."""
        return next(place for place, time in enumerate(self.times) if time <= slowest_s)

    def search(self, place: int, train_s: float, threshold: float) -> int:
        """Where loading is nearest to the training time: Algorithm 1 for one GPU."""
        if not self.asks:
            return place
        low, high, place = 1, len(self.counts) - 1, max(1, place)
        best, nearest = place, abs(self.times[place] - train_s)
        for end in (low, high):  # bisection never looks at the ends themselves
            if abs(self.times[end] - train_s) < nearest:
                best, nearest = end, abs(self.times[end] - train_s)
        while abs(late := self.times[place] - train_s) >= threshold * train_s and high - low > 1:
            low, high = (place, high) if late > 0 else (low, place)
            place = low + (high - low) // 2
            if abs(self.times[place] - train_s) <= nearest:
                best, nearest = place, abs(self.times[place] - train_s)
        return best


def _keep_budget(rungs: Sequence[_Rungs], places: list[int], budget: int) -> None:
    """Take workers from the queue that is earliest, until no more are given than there are. Each keeps its first one."""
    over = sum(one.counts[place] for one, place in zip(rungs, places, strict=True)) - budget
    early = [(one.times[place], number) for number, (one, place) in enumerate(zip(rungs, places, strict=True)) if place > 1]
    heapq.heapify(early)
    while over > 0:
        _, number = early[0]
        one, place = rungs[number], places[number]
        over -= one.counts[place] - one.counts[place - 1]
        places[number] = place - 1
        if place - 1 > 1:
            heapq.heapreplace(early, (one.times[place - 1], number))
        else:
            heapq.heappop(early)


def _exchange(rungs: Sequence[_Rungs], places: list[int], train_s: float, budget: int) -> None:
    """Bring workers to the slowest queue from those that stay faster than it is now, the earliest first."""
    while True:
        slowest = max(range(len(rungs)), key=lambda number: rungs[number].times[places[number]])
        one, place = rungs[slowest], places[slowest]
        limit_s = one.times[place]
        if limit_s <= train_s or place == len(one.counts) - 1:
            return
        free = budget - sum(other.counts[at] for other, at in zip(rungs, places, strict=True))
        missing = one.counts[place + 1] - one.counts[place] - free
        after = list(places)
        early = [(other.times[at], number) for number, (other, at) in enumerate(zip(rungs, places, strict=True))]
        heapq.heapify(early)
        while missing > 0 and early:
            _, number = heapq.heappop(early)
            other, at = rungs[number], after[number]
            if number == slowest or at <= 1 or other.times[at - 1] >= limit_s:
                continue
            missing -= other.counts[at] - other.counts[at - 1]
            after[number] = at - 1
            heapq.heappush(early, (other.times[at - 1], number))
        if missing > 0:
            return
        after[slowest] += 1
        places[:] = after


def _assignment(rungs: Sequence[_Rungs], places: Sequence[int], train_s: float, budget: int, reason: str) -> Assignment:
    workers = tuple(one.counts[place] for one, place in zip(rungs, places, strict=True))
    times = [max(train_s, one.times[place]) for one, place in zip(rungs, places, strict=True)] or [train_s]
    slowest, fastest = max(times), min(times)
    gap = 0.0 if slowest == fastest else slowest - fastest
    return Assignment(workers, budget - sum(workers), slowest, gap, reason)
