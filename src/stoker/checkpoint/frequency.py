"""How often to checkpoint, so that training is slowed by a given fraction at most. Pure: times in, an interval out.

A checkpoint stalls the loop for T_o. Then it is persisted in the background for T_s, and only one may be in flight, so a
trigger after k iterations of T_i each waits max(0, T_s - k T_i). `interval` is the smallest k for which

    T_o + max(0, T_s - k T_i)  <=  p k T_i

`Pace` starts from that and corrects it by what was really measured: background work slows the loop, too.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass

_PROFILED_AT_MOST = 50
_PROFILED_AT_LEAST = 5
_CALM = 3
"""So many intervals in a row must have cost little before checkpoints become more frequent."""
_AIM = 0.8
"""The part of the budget that is planned with; the rest is for what was not foreseen."""
_FASTER_AT_MOST = 2.0
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured: an iteration, the stall of one checkpoint, and its persisting in the background."""

    iteration_s: float
    stall_s: float
    persist_s: float


def overhead_at(k: int, costs: Costs) -> float:
    """The fraction by which checkpoints every k iterations slow the loop."""
    waits_s = max(0.0, costs.persist_s - k * costs.iteration_s)
    return (costs.stall_s + waits_s) / (k * costs.iteration_s)


def interval(costs: Costs, budget: float) -> int:
    """The smallest number of iterations between checkpoints that keeps the budget."""
    if costs.stall_s >= budget * costs.persist_s:
        k = math.ceil(costs.stall_s / (budget * costs.iteration_s))
    else:
        k = math.ceil((costs.stall_s + costs.persist_s) / ((1 + budget) * costs.iteration_s))
    k = max(1, k)
    while overhead_at(k, costs) > budget:  # the division above was rounded
        k += 1
    while k > 1 and overhead_at(k - 1, costs) <= budget:
        k -= 1
    return k


@dataclass(frozen=True, slots=True)
class SnapshotMode:
    """Where a snapshot is taken, and the stall that this means."""

    mode: str
    stall_s: float


def choose(copy_s: float, clone_s: float | None, iteration_s: float, update_s: float, *, fits: bool) -> SnapshotMode:
    """In GPU memory if it fits there and stalls less; otherwise a copy to the host, hidden behind forward and backward."""
    copy_stall_s = max(0.0, copy_s - (iteration_s - update_s))
    if clone_s is not None and fits and clone_s < copy_stall_s:
        return SnapshotMode("gpu", clone_s)
    return SnapshotMode("cpu", copy_stall_s)


def profiled_iterations(epoch: int | None) -> int:
    """How many iterations are watched before the first checkpoint: one percent of an epoch, but enough to tell."""
    return max(_PROFILED_AT_LEAST, min(_PROFILED_AT_MOST, math.ceil((epoch or 10**6) / 100)))


class CheckpointPace:
    """The interval over time.

    Every iteration is reported with its duration, the part of it that the loop was held up (`stalled_s`), and whether a
    snapshot or a persist was at work beside it. Iterations that were alone say what an iteration costs; those that were
    not say by how much they were slowed. Medians, because a validation or a slow batch may fall into any of them.
    """

    def __init__(self, budget: float, *, fixed: int | None = None) -> None:
        self.budget = budget
        self.fixed = fixed
        self.interval = fixed or 1
        self.overhead = 0.0
        self._alone: deque[float] = deque(maxlen=_REMEMBERED)
        self._beside: list[float] = []
        self._stalled_s = 0.0
        self._iterations = 0
        self._calm: deque[int] = deque(maxlen=_CALM)

    @property
    def iteration_s(self) -> float:
        """What an iteration costs when nothing else runs."""
        return statistics.median(self._alone) if self._alone else 0.0

    def iterated(self, seconds: float, stalled_s: float, *, beside: bool) -> None:
        """One more iteration."""
        self._iterations += 1
        self._stalled_s += stalled_s
        (self._beside if beside else self._alone).append(seconds - stalled_s)

    def plan(self, costs: Costs) -> None:
        """Set the first interval from a profile."""
        if self.fixed is None:
            self.interval = interval(costs, _AIM * self.budget)

    def close_interval(self) -> None:
        """A checkpoint is due: look at what the last one has cost since, and correct the interval."""
        iteration_s, beside, iterations = self.iteration_s, self._beside, self._iterations
        slowed_s = max(0.0, statistics.median(beside) - iteration_s) * len(beside) if beside and self._alone else 0.0
        cost_s = self._stalled_s + slowed_s
        self._beside, self._stalled_s, self._iterations = [], 0.0, 0
        if not iteration_s or not iterations:
            return
        self.overhead = cost_s / (iterations * iteration_s)
        if self.fixed is not None:
            return
        # Enough iterations to pay for the cost, to finish persisting, and to have some undisturbed ones to compare with.
        wanted = max(1, math.ceil(cost_s / (_AIM * self.budget * iteration_s)), math.ceil(len(beside) * 1.1) + 1)
        if self.overhead > self.budget or wanted > self.interval:
            self.interval = max(self.interval, wanted)
            self._calm.clear()
            return
        self._calm.append(wanted)
        if len(self._calm) == _CALM and self.overhead < self.budget:
            self.interval = max(*self._calm, math.ceil(self.interval / _FASTER_AT_MOST))
            self._calm.clear()
