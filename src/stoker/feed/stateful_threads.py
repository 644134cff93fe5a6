"""Iterators over worker threads that keep states of others: what `stateful` has for worker processes."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from stoker.feed.carrier import MapStyle
from stoker.feed.pooled import PoolIter
from stoker.feed.positions import ArrivedState
from stoker.feed.stateful import StatefulOrders
from stoker.pool.pool import Pool
from stoker.pool.serving import Result
from stoker.pool.start import StreamStart
from stoker.pool.thread_states import ONLY_BEGIN
from stoker.pool.work import Made, Report, Work

_PAUSE_S = 0.001
_NO_BATCH = -1


class StatefulThreadsIter(StatefulOrders, PoolIter):
    """Map-style, by worker threads."""

    def __init__(self, loader: Any, start: Callable[[Any], Pool]) -> None:
        self._begin_notes(loader)
        self._made_by: dict[int, int] = {}
        """The worker of each work whose result is here and was not taken."""
        super().__init__(loader, start)
        self._show_position(loader)

    @property
    def has_states(self) -> bool:
        """Whether workers own something that is asked for its state."""
        return self._has_states

    @property
    def starts(self) -> list[StreamStart]:
        """Where each worker goes on; empty: where it is."""
        return list(self._resuming.starts)

    def told(self, what: str, worker: int, epoch: int, state: Any) -> None:
        """Hear from a worker thread, in that thread, how it begins or ended."""
        self._position.told(what, worker, epoch, _arrived(state))

    def _complete(self) -> None:
        while (pool := self._pool) is not None and not self._position.have_begun:
            pool.crew.check()
            time.sleep(_PAUSE_S)

    def _next_number(self) -> int:
        return self._sent

    def _worker_turns(self) -> Iterator[int]:
        return self._turns

    def _begin_turns(self) -> None:
        self._made_by.clear()
        super()._begin_turns()

    def _begin_epoch(self) -> None:
        super()._begin_epoch()
        for worker in range(self._crew_size):
            if self._has_states and not self._load[worker] and self._pool is not None:  # fewer batches than workers
                self._pool.order(worker, _NO_BATCH, Work(self._position.generation, 0, 0, ONLY_BEGIN))

    def _next_work(self) -> Work:
        return Work(self._position.generation, 0, 0, self._next_index())

    def _settle(self, number: int, result: Result) -> None:
        self._made_by[number] = self._due[number]
        super()._settle(number, result)

    def _next_result(self) -> Result:
        result = super()._next_result()
        worker = self._made_by.pop(self._latest)
        if self._has_states and not _is_end(result):
            self._position.saw(worker, _arrived(result.state) if isinstance(result, Made) else None)
        if self._tracks:
            self._position.saw_all_but({**self._due, **self._made_by})
        return result


class StreamThreadsIter(StatefulThreadsIter):
    """A stream, by worker threads. A worker whose stream has ended has no turn any more."""

    def _begin_turns(self) -> None:
        self._is_at_work = [True] * self._crew_size
        super()._begin_turns()

    def _next_turn(self) -> int | None:
        for _ in range(self._crew_size):
            worker = next(self._turns)
            if self._is_at_work[worker] and (self._in_order or self._load[worker] < self._most_due):
                return worker
        return None

    def _settle(self, number: int, result: Result) -> None:
        if _is_end(result):
            self._is_at_work[self._due[number]] = False
        super()._settle(number, result)

    def _next_result(self) -> Result:
        while _is_end(result := super()._next_result()):
            pass
        return result

    def __next__(self) -> Any:
        return super(MapStyle, self).__next__()  # torch's, which compares the length that a stream says it has


def _is_end(result: Result) -> bool:
    return isinstance(result, Made) and result.rest == Report.ENDED


def _arrived(state: Any) -> ArrivedState | None:
    return None if state is None else ArrivedState(None, *state)
