"""Which sample comes when.

An order knows nothing of ranks, workers or jobs. A *drawn* order is a pure function of seed and epoch, the same in every
process and at any time. The order of a user's sampler is not drawn here: `feed/route` asks the sampler, one epoch at a
time. Only `share` depends on the number of processes that share an epoch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """All samples once, shuffled anew in every epoch or not at all."""

    samples: int
    seed: int = 0
    shuffle: bool = True

    def epoch(self, epoch: int) -> Ids:
        """The samples of an epoch, in their order."""
        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        return np.random.Generator(np.random.Philox(key=[self.seed & _MASK, epoch])).permutation(self.samples)


def pad(ids: Ids, world: int, *, drop_last: bool, consumed: int = 0) -> Ids:
    """What is left of an epoch, made to divide evenly among `world` processes.

    By repeating from the epoch's start, or by leaving out the last.
    """
    left = ids[consumed:]
    if drop_last:
        return left[: len(left) // world * world]
    missing = -len(left) % world
    return np.concatenate([left, np.resize(ids, missing)]) if missing and len(left) else left


def share(ids: Any, rank: int, world: int) -> Any:
    """What one process of `world` takes of an epoch."""
    return ids[rank::world]


def length_of(thing: Any) -> int | None:
    """How many a loader, a sampler or a dataset has; None if it does not say."""
    try:
        return len(thing)
    except (TypeError, NotImplementedError):  # samplers and streams say in either way that they have none
        return None


def mix(*numbers: int) -> int:
    """A 64-bit number that depends on every bit of all arguments (SplitMix64's finalizer, chained)."""
    value = 0
    for number in numbers:
        value = (value + (number & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value
