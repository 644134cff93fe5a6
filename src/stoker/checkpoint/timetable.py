"""When checkpoints are due: the first after a profile, then at the pace that keeps the budget.

Alone, a process goes by its own pace. Several agree at every checkpoint on the step of the next: all must take it there.
"""

from collections.abc import Iterable
from typing import Any

from stoker.checkpoint.frequency import CheckpointPace, Costs, profiled_iterations
from stoker.checkpoint.ranks import CheckpointRanks
from stoker.order import length_of


class Timetable:
    """Steps in, whether a checkpoint is due out. A loader among the `parts` of a run tells how long an epoch is."""

    def __init__(self, pace: CheckpointPace, ranks: CheckpointRanks, parts: Iterable[Any]) -> None:
        self.pace = pace
        self.is_planned = pace.fixed is not None
        """Whether the interval is known, and not a guess to be replaced by a profile."""
        self.last = 0
        """The step of the last snapshot."""
        self.committed = 0
        """The newest step that all nodes have on disk, as far as they have told each other."""
        self.retry = False
        """Whether the last snapshot was in vain, and one is due at once."""
        self._ranks = ranks
        self._profiled = max(ranks.exchange(profiled_iterations(_batches(parts))))
        self._agreed: int | None = None
        """The step that several processes have agreed on."""

    @property
    def _interval(self) -> int:
        return self.pace.interval if self.is_planned else self._profiled

    def is_due(self, step: int) -> bool:
        """Whether to take a checkpoint after this step."""
        if self._agreed is not None:
            return step >= self._agreed
        return self.retry or step - self.last >= self._interval

    def is_halfway_to_first(self, step: int) -> bool:
        """Whether half of the profile is over, when optimizers have their state."""
        return not self.is_planned and self._agreed is None and step - self.last == self._profiled // 2

    def agree(self, step: int, *, is_busy: bool, durable: int) -> bool:
        """Whether all processes are idle. Then all know which checkpoint counts, and when the next is due."""
        said = self._ranks.exchange([is_busy, self._ranks.is_writer, durable, self._interval])
        wanted = self.pace.fixed or max(interval for _, is_writer, _, interval in said if is_writer)
        self.committed = min(durable for _, is_writer, durable, _ in said if is_writer)
        is_anyone_busy = any(busy for busy, *_ in said)
        self._agreed = step + (max(1, wanted // 8) if is_anyone_busy else wanted)
        return not is_anyone_busy

    def taken(self, step: int) -> None:
        """Note that a snapshot is taken now."""
        self.pace.close_interval()
        self.last = step
        self.retry = False

    def torn(self) -> None:
        """Note that the last snapshot cannot be used. Another is taken at once, or when all have agreed."""
        self.retry = self._agreed is None

    def plan(self, costs: Costs) -> None:
        """Set the pace when the profile is over."""
        self.is_planned = True
        self.pace.plan(costs)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs in order not to profile again."""
        return {"planned": self.is_planned, "interval": self.pace.interval, "budget": self.pace.budget}

    def go_on_from(self, step: int, state: dict[str, Any]) -> None:
        """Go on from a checkpoint that all have whole. Its plan holds if it was made for the same budget."""
        self.last = self.committed = step
        if self.pace.fixed is None and state["planned"] and state["budget"] == self.pace.budget:
            self.pace.interval = state["interval"]
            self.is_planned = True


def _batches(parts: Iterable[Any]) -> int | None:
    """How many iterations an epoch has, if a loader among the parts says so."""
    lengths = (length_of(part) for part in parts if hasattr(part, "__iter__"))
    return next((length for length in lengths if length is not None), None)
