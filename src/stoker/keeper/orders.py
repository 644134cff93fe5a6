"""What all ranks of a job read in the epochs to come: a loader draws it, and the keeper of its host reads it.

It lies in memory without a name that the loader's process makes, so that a keeper that is started again finds it. Each
epoch has a place there, epoch modulo the number of places, which says which epoch it has.
"""

import os

import numpy as np

from stoker.memory import PAGE, Memory
from stoker.order import Ids

MOST_BYTES = 256 << 20
"""No longer than this: fewer epochs are told of very large data."""
_NOTHING = 0
"""A place has the number of its epoch plus one."""


class EpochOrders:
    """The orders of some epochs, as long as each other. Samples have numbers below 2^32."""

    def __init__(self, samples: int, epochs: int, descriptor: int | None = None) -> None:
        if not 0 < samples < 1 << 32:
            raise ValueError(f"orders of {samples} samples")
        self.samples = samples
        self.epochs = places(samples, epochs)
        length = PAGE + self.epochs * samples * 4
        if descriptor is not None and os.fstat(descriptor).st_size < length:
            raise ValueError("shorter than it should be")
        self.memory = Memory(length, descriptor=descriptor)
        content = self.memory.map(0, length).view()
        self._which = content[:PAGE].view(np.uint64)
        self._ids = content[PAGE:].view(np.uint32).reshape(self.epochs, samples)

    def has(self, epoch: int) -> bool:
        """Whether an epoch is told."""
        return int(self._which[epoch % self.epochs]) == epoch + 1

    def write(self, epoch: int, ids: Ids) -> None:
        """Tell an epoch: what all ranks read, one sample of each in turn."""
        place = epoch % self.epochs
        self._which[place] = _NOTHING
        self._ids[place] = ids
        self._which[place] = epoch + 1

    def epoch(self, epoch: int) -> Ids:
        """What was told of an epoch; nothing if that is not known."""
        return self._ids[epoch % self.epochs].astype(np.int64) if self.has(epoch) else np.empty(0, np.int64)


def places(samples: int, epochs: int) -> int:
    """How many epochs are told at once, at least one."""
    return max(1, min(epochs, PAGE // 8, MOST_BYTES // (4 * max(1, samples))))
