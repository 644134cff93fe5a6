"""A worker of a rank that shares without a seed: batches that draw nothing may be made anywhere, others stay in their turn.

torch seeds each worker once. Batch k then finds the generators as the batch before it, in the same worker, has left them. A
batch that draws nothing leaves them as they are, so it makes no difference where it is made. The rules:

- Other ranks may help when the first batch has drawn nothing, and has left the dataset as it was.
- Own workers look at the whole dataset again after 2, 4, 8, ... batches, as long as that takes a hundredth of their time.
- A worker that draws while it helps puts its own generators back, and gives the batch back. So does one that asks for
  `get_worker_info().id` or `torch.initial_seed()`, and one whose dataset gets another attribute by it (a count, say). From
  then on nobody helps that rank any more, and its workers help nobody.
- An own worker that draws keeps the batch only if all its earlier batches are settled. If one of them is still with
  another rank's worker, the own worker puts its generators back, waits for that one, and makes its own batch again.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.pool.helping import Helping, if_shared
from stoker.pool.maker import Room
from stoker.pool.processes import LineExchange, Serving
from stoker.pool.serving import Duty, Exchange, Result
from stoker.pool.traces import Traces
from stoker.pool.work import Made, Work
from stoker.pool.worker import SlotRoom
from stoker.slots.offers import DRAWS, MAY_BE_HELPED, UNKNOWN

_PAUSE_S = 0.001


class ServingInTurn(Serving):
    """What runs in a worker process of a rank that shares without a seed. It is sent there."""

    def __init__(self, duty: Duty, worker: int, room: SlotRoom, *, own: Path, is_unchanged: Callable[[Any], bool]) -> None:
        super().__init__(duty, worker, room)
        self._own = own
        self._is_unchanged = is_unchanged

    def exchange(self, lines: LineExchange) -> tuple[Exchange, Room]:
        """This worker's lines, and the works of other ranks."""
        work = self._duty.dataset, self._is_unchanged
        return if_shared(lambda: HelpingInTurn(lines, self._room, self._own, *work), lines, self._room)


class HelpingInTurn(Helping):
    """The exchange of such a worker, and its room."""

    def __init__(
        self, lines: LineExchange, room: SlotRoom, own: Path, dataset: Any, is_unchanged: Callable[[Any], bool]
    ) -> None:
        super().__init__(lines, room, own)
        self._dataset = dataset
        self._is_unchanged = is_unchanged
        self._traces = Traces(dataset)
        self._skipped: list[tuple[int, Work]] = []
        """Works of this worker that workers of other ranks have taken, in their order."""
        self._again: deque[tuple[int, Work]] = deque()
        """A batch that has drawn, and has to wait until all before it are settled."""
        self._given: tuple[Any, Work] | None = None
        self._made, self._look_at = 0, 1
        """How many own batches were made, and after how many the whole dataset is looked at next."""
        self._began, self._looking_s = self._clock(), 0.0

    def next(self) -> tuple[Any, Work] | None:
        """The next work."""
        self._given = self._next()
        return self._given

    def _next(self) -> tuple[Any, Work] | None:
        while True:
            mine = self._taken_up()
            if mine is not None:
                self._use(self._own_room)
                return mine
            if not self._again:
                return super().next()
            if self._lines.stop.is_set():
                return None
            time.sleep(_PAUSE_S)  # until a worker of another rank is done, or gives up, or is not at work any more

    def _taken_up(self) -> tuple[int, Work] | None:
        """The first work that was taken by others and is to be made here, or one that waited for these."""
        for number, work in list(self._skipped):
            if self._own.is_settled(number):
                self._skipped.remove((number, work))
            elif self._own.begin_left(number):
                self._skipped.remove((number, work))
                return number, work
        return self._again.popleft() if self._again and not self._skipped else None

    def _skip(self, number: int, work: Work) -> None:
        """Another rank's worker has this one."""
        self._skipped.append((number, work))

    def _left(self) -> tuple[Any, Work] | None:
        """Nothing is taken from this rank's other workers, as it may draw."""
        return self._taken_up()

    def _for_another_rank(self) -> tuple[Any, Work] | None:
        """Nothing is made for others with a dataset that own batches have changed."""
        return None if self._own.state == DRAWS else super()._for_another_rank()

    def publish(self, name: Any, result: Result) -> None:
        """Report a batch, unless it has to be made again later."""
        draws = self._traces.were_left()
        if not isinstance(name, int):
            if draws:
                self._undo(name.rank.room, result)
                name.rank.works.state = DRAWS
                name.rank.works.give_back(name.number)
                return
            super().publish(name, result)
            return
        if draws:
            self._own.state = DRAWS
            if any(number < name and not self._own.is_settled(number) for number, _ in self._skipped):
                self._undo(self._own_room, result)
                assert self._given is not None
                self._again.append((name, self._given[1]))
                return
            self._traces.keep()
        super().publish(name, result)
        self._made += 1
        now = self._own.state
        if now == UNKNOWN or (now == MAY_BE_HELPED and self._made == self._look_at and self._has_time()):
            self._look(now)

    def _look(self, state: int) -> None:
        """See whether own batches leave the dataset as it is: after the first, and again after twice as many each time."""
        began = self._clock()
        is_unchanged = self._is_unchanged(self._dataset)
        if self._own.state == state:  # or else another worker has drawn meanwhile
            self._own.state = MAY_BE_HELPED if is_unchanged else DRAWS
        self._look_at = 2 * self._made
        self._looking_s += self._clock() - began

    def _has_time(self) -> bool:
        """Whether looking at the dataset has taken less than a hundredth of the time until now. If not, look later."""
        if self._looking_s < (self._clock() - self._began) / 100:
            return True
        self._look_at = 2 * self._made
        return False

    def _undo(self, room: SlotRoom, result: Result) -> None:
        """Put everything back as it was before a batch, which nobody gets."""
        self._traces.remove()
        if isinstance(result, Made) and result.place is not None:
            room.outbox.withdraw(result.place[1])
