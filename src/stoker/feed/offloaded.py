"""The iterator of a loader whose batches other hosts may prepare, too: it times the loop when the relay asks for it.

What the loop takes cannot be seen while it waits for data: on a device steps run behind the script. So the next batches are
gathered until as many as may be under way are ready, the device is waited for, and the loop is timed over them. These are
its own batches in their order, so nothing but the moment of some of them differs.
"""

from typing import Any

import torch

from stoker.feed.pooled import InTurnIter, PoolIter, SeededPoolIter
from stoker.meter import now
from stoker.pool.shared import SharedPool
from stoker.pool.work import Made

_GATHER_S = 5.0
_FEWEST = 2


class _Timing(PoolIter):
    """Worker processes, and a relay that may want the loop to be timed."""

    _ready = 0
    """How many of the batches are left that the loop is being timed over."""
    _began_at = 0.0
    _timed_samples = 0

    def _begin_epoch(self) -> None:
        self._ready = 0
        super()._begin_epoch()

    def _next_data(self) -> Any:
        pool: Any = self._pool
        if isinstance(pool, SharedPool):
            self._heed(pool)
        data = super()._next_data()
        self._timed_samples += self._arrived
        return data

    def _heed(self, pool: SharedPool) -> None:
        """Do what the relay wants."""
        if pool.is_to_be_timed:
            if self._ready == 1:
                self._end_timing(pool)
            elif self._ready > 1:
                self._ready -= 1
            else:
                self._begin_timing()

    def _begin_timing(self) -> None:
        """Gather batches, and begin to time the loop over them."""
        if not self._are_whole:
            return
        deadline = now() + _GATHER_S
        while self._due and now() < deadline:
            number, result = self._receive()
            self._settle(number, result)
            self._early[number] = result
        ready = 0
        while isinstance(self._early.get(self._expected + ready), Made):
            ready += 1
        if ready >= _FEWEST:
            _wait_for_device()
            self._began_at, self._timed_samples = now(), 0
            self._ready = ready

    @property
    def _are_whole(self) -> bool:
        """Whether the next batches come as a whole, not in parts of several workers."""
        return True

    def _end_timing(self, pool: SharedPool) -> None:
        _wait_for_device()
        self._ready = 0
        pool.time_loop(self._timed_samples / max(now() - self._began_at, 1e-9))
        pool.is_to_be_timed = False  # until it is heard again


class OffloadedIter(_Timing, SeededPoolIter):
    """With a seed."""

    @property
    def _are_whole(self) -> bool:
        return bool(self._works.ordered) and self._works.ordered[0].parts == 1


class OffloadedInTurnIter(_Timing, InTurnIter):
    """Without a seed: nothing goes away once the data has drawn."""


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
