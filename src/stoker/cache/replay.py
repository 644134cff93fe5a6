"""What a cache would do on an order that is known: a simulation with the ledger and the policies of the live one.

A reader's share of the samples is another one in each epoch, so the next use of a sample may be several epochs away.
`Foresight` tells the next use of every sample. It goes on epoch by epoch, keeps a few epochs in memory, and serves the live
cache too. All hits here are demand hits: nothing is prefetched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.cache.ledger import Admission, Ledger
from stoker.cache.policy import FAR, by_frequency, make_policy
from stoker.errors import ConfigError
from stoker.order import Drawn, Ids, pad, share

BY_FREQUENCY = "by-frequency"
"""A policy that can be simulated and not chosen: it needs to know how many epochs there will be."""

_EPOCH_BITS = 40
"""A position is epoch * 2^40 + place in the epoch, so that no epoch needs to know the lengths of those before it."""
_PLACE = (1 << _EPOCH_BITS) - 1


def epoch_of(position: int) -> int:
    """The epoch of a position. That of FAR is later than any."""
    return position >> _EPOCH_BITS


class Foresight:
    """When each sample is used next, as of now: within this epoch and the `horizon` epochs after it.

    `epoch_ids(epoch)` gives what is used in an epoch, in order; repeats are allowed. `begin` an epoch, then `advance` with
    every use, before the cache is asked: a use that is being made is no longer a coming one.
    """

    def __init__(self, epoch_ids: Callable[[int], Ids], horizon: int) -> None:
        if horizon < 0:
            raise ConfigError(f"a horizon of {horizon} epochs; it must be 0 or more")
        self._epoch_ids = epoch_ids
        self._horizon = horizon
        self._window: dict[int, Ids] = {}
        self._ids = self._next = self._after = np.empty(0, np.int64)
        self._epoch = self._place = 0

    def begin(self, epoch: int) -> Ids:
        """Go to the start of an epoch, and return what is used in it. Epochs may come in any order; known ones are kept."""
        known = self._window
        epochs = range(epoch, epoch + self._horizon + 1)
        self._window = {number: known[number] if number in known else self._epoch_ids(number) for number in epochs}
        self._ids = self._window[epoch]
        self._epoch, self._place = epoch, 0
        self._next = np.full(1 + max(int(ids.max(initial=-1)) for ids in self._window.values()), FAR)
        for number in reversed(epochs[1:]):
            self._mark(number)
        self._after = self._next[self._ids]
        # Sorting puts several uses of one sample in this epoch beside each other.
        by_id = np.argsort(self._ids, kind="stable")
        again = np.flatnonzero(np.diff(self._ids[by_id]) == 0)
        self._after[by_id[again]] = (epoch << _EPOCH_BITS) + by_id[again + 1]
        self._mark(epoch)
        return self._ids

    def advance(self, count: int = 1) -> None:
        """Move on by so many uses."""
        past = slice(self._place, self._place + count)
        self._next[self._ids[past]] = self._after[past]
        self._place += count

    def use(self, key: int) -> None:
        """Move on by one use of this key, in whatever order keys are used: the ranks of a host are not at the same place.

        A use that is not expected in this epoch changes nothing.
        """
        if epoch_of(self.next_use(key)) == self._epoch:
            self._next[key] = self.use_after_next(key)

    def at(self, place: int) -> int | None:
        """What is used at a place of this epoch or, beyond its end, of the next one; None where that is not known."""
        if place < len(self._ids):
            return int(self._ids[place])
        later = self._window.get(self._epoch + 1, self._ids[:0])
        return int(later[place - len(self._ids)]) if place - len(self._ids) < len(later) else None

    def next_use(self, key: int) -> int:
        """The position of the key's next use, or FAR."""
        return int(self._next.item(key)) if key < len(self._next) else FAR

    def use_after_next(self, key: int) -> int:
        """The position of the use after the next one, if the next one is in this epoch; else FAR."""
        position = self.next_use(key)
        return int(self._after[position & _PLACE]) if epoch_of(position) == self._epoch else FAR

    def _mark(self, epoch: int) -> None:
        """Note an epoch's uses, which come before all noted so far. Backwards, so that the first of several stays."""
        ids = self._window[epoch]
        self._next[ids[::-1]] = (epoch << _EPOCH_BITS) + np.arange(len(ids) - 1, -1, -1)


@dataclass(frozen=True, slots=True)
class EpochReplay:
    """One epoch of one reader."""

    uses: int
    hits: int
    bytes_from_storage: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one reader's cache did, epoch by epoch. Sizes are samples where none were given."""

    epochs: tuple[EpochReplay, ...]

    def hit_ratio(self, after: int = 1) -> float:
        """Demand hits per use, without the first epochs, in which the cache filled."""
        uses = sum(epoch.uses for epoch in self.epochs[after:])
        return sum(epoch.hits for epoch in self.epochs[after:]) / uses if uses else 0.0


def taken(order: Drawn, reader: int, readers: int) -> Callable[[int], Ids]:
    """What one of several readers takes of each epoch, as a function of the epoch."""
    if not 0 <= reader < readers:
        raise ConfigError(f"reader {reader} of {readers}; readers are counted from 0")

    def epoch_ids(epoch: int) -> Ids:
        # A copy: a view would keep the whole epoch in memory.
        return np.array(share(pad(order.epoch(epoch), readers, drop_last=False), reader, readers), np.int64)

    return epoch_ids


def far_enough(readers: int) -> int:
    """A horizon beyond which little is gained: alone, all is used again in the next epoch; else two passes of the data."""
    return 1 if readers == 1 else 2 * readers


class SimulatedCache:
    """One reader's cache, use by use. `begin` an epoch, then `use` all of its samples, in order.

    `epochs` is how many there will be: a frequency is the number of uses in all of them, as it is known before the first.
    """

    def __init__(self, epoch_ids: Callable[[int], Ids], capacity: int, policy: str, *, horizon: int, epochs: int) -> None:
        self._foresight = Foresight(epoch_ids, horizon if policy == "reuse-distance" else 0)
        if policy == BY_FREQUENCY:
            uses = np.bincount(np.concatenate([epoch_ids(epoch) for epoch in range(epochs)])).tolist()
            self.ledger = Ledger(capacity, by_frequency(uses.__getitem__))
        else:
            self.ledger = Ledger(capacity, make_policy(policy, self._foresight.next_use))

    def begin(self, epoch: int) -> Ids:
        """Go to the start of an epoch; what is used in it."""
        return self._foresight.begin(epoch)

    def use(self, key: int, size: int = 1) -> Admission | None:
        """Use a sample. None, if it was in the cache, or what became of it."""
        self._foresight.advance()
        return None if self.ledger.look(key) else self.ledger.admit(key, size)


def replay(
    order: Drawn,
    *,
    capacity: int,
    policy: str,
    readers: int = 1,
    epochs: int = 10,
    sizes: Sequence[int] | None = None,
    horizon: int | None = None,
) -> ReplayResult:
    """Simulate the cache of one reader among several. Each reader has its own cache.

    `capacity` is in bytes, or in samples if there are no `sizes`. `horizon` is how many epochs ahead are known.
    """
    ahead = far_enough(readers) if horizon is None else horizon
    cache = SimulatedCache(taken(order, 0, readers), capacity, policy, horizon=ahead, epochs=epochs)
    done: list[EpochReplay] = []
    for epoch in range(epochs):
        before = cache.ledger.stats()
        ids = cache.begin(epoch)
        for key in ids.tolist():
            cache.use(key, 1 if sizes is None else int(sizes[key]))
        now = cache.ledger.stats()
        done.append(EpochReplay(len(ids), now.hits - before.hits, now.bytes_missed - before.bytes_missed))
    return ReplayResult(tuple(done))
