"""Which sample makes room for another. Pure: numbers in, numbers out.

A policy only orders victims. What is resident, how large it is and whether it fits is the ledger's, who tells the policy
of every change; so the same policies serve the live cache and the simulator. No policy looks at all keys to find a victim.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from stoker.errors import ConfigError
from stoker.plan import CACHE_POLICIES

NextUse = Callable[[int], int]
"""The position of a key's next use as of now, or `FAR`. Positions are only compared."""

FAR = (1 << 63) - 1
"""The position of a use that is not in sight."""

_SLACK = 64


class Policy(Protocol):
    """Sees numbers only: no bytes, sizes, clocks or locks."""

    def enter(self, key: int) -> None:
        """It is resident from now on."""

    def touch(self, key: int) -> None:
        """It is resident, and is being used."""

    def leave(self, key: int) -> None:
        """It is resident no more."""

    def victims(self, newcomer: int) -> Iterable[int]:
        """The residents that may go for the newcomer, best first; too few = the newcomer is turned away.

        Asking changes nothing. One walk at a time, and no other call before it ends.
        """


class KeepFirst:
    """What came first stays. For one reader of a whole permutation per epoch no policy has more hits."""

    def enter(self, key: int) -> None:
        """Nothing to remember."""

    def touch(self, key: int) -> None:
        """Nothing to remember."""

    def leave(self, key: int) -> None:
        """Nothing to forget."""

    def victims(self, newcomer: int) -> Iterable[int]:
        """None, whoever comes."""
        return ()


class LeastRecent:
    """What was not used for longest goes first (LRU). What a page cache does: for comparison, and for orders unknown."""

    def __init__(self) -> None:
        # Not a dict: there, finding the first walks over all that were taken from the front.
        self._keys: OrderedDict[int, None] = OrderedDict()

    def enter(self, key: int) -> None:
        """It is the last to go."""
        self._keys[key] = None
        self._keys.move_to_end(key)

    def touch(self, key: int) -> None:
        """It is the last to go again."""
        if key in self._keys:
            self.enter(key)

    def leave(self, key: int) -> None:
        """Forget it."""
        self._keys.pop(key, None)

    def victims(self, newcomer: int) -> Iterable[int]:
        """All, the longest unused first."""
        return iter(self._keys)


class ReuseDistance:
    """What is used farthest in the future goes first, and only for a newcomer that is used sooner (Belady, with bypass).

    A heap holds the next use that each key had when it was last looked at. An entry that no longer holds is noticed when
    it comes to the top: its key has left, was used since, or has a use that only now came into sight. Too many of them,
    and the heap is made anew; that also rights keys whose use did not take place, as when an epoch is broken off.
    """

    def __init__(self, next_use: NextUse) -> None:
        self._next_use = next_use
        self._expected: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (-next use, key)

    def enter(self, key: int) -> None:
        """Remember when it is used next."""
        self._expect(key, self._next_use(key))
        if len(self._heap) > 2 * len(self._expected) + _SLACK:
            self._expected = {resident: self._next_use(resident) for resident in self._expected}
            self._heap = [(-position, resident) for resident, position in self._expected.items()]
            heapq.heapify(self._heap)

    def touch(self, key: int) -> None:
        """Remember when it is used after this."""
        if key in self._expected:
            self.enter(key)

    def leave(self, key: int) -> None:
        """Forget it."""
        self._expected.pop(key, None)

    def victims(self, newcomer: int) -> Iterator[int]:
        """Those that are used later than the newcomer, the farthest first."""
        soon = self._next_use(newcomer)
        offered: list[tuple[int, int]] = []
        try:
            while self._heap and -self._heap[0][0] > soon:
                entry = heapq.heappop(self._heap)
                position, key = -entry[0], entry[1]
                # A key that left and came back may be there twice, and then one after the other.
                if self._expected.get(key) != position or (offered and offered[-1] == entry):
                    continue
                now = self._next_use(key)
                if now != position:
                    self._expect(key, now)
                    continue
                offered.append(entry)
                yield key
        finally:
            for entry in offered:
                heapq.heappush(self._heap, entry)

    def _expect(self, key: int, position: int) -> None:
        if self._expected.get(key) != position:
            self._expected[key] = position
            heapq.heappush(self._heap, (-position, key))


def make_policy(name: str, next_use: NextUse | None = None) -> Policy:
    """A policy by its name. Reuse distance needs to know the next use of a key."""
    if name == "keep-first":
        return KeepFirst()
    if name == "lru":
        return LeastRecent()
    if name != "reuse-distance":
        raise ConfigError(f"there is no cache policy {name!r}; choose one of {', '.join(CACHE_POLICIES)}")
    if next_use is None:
        raise ConfigError("the cache policy 'reuse-distance' needs an order known in advance: one drawn from a seed")
    return ReuseDistance(next_use)
