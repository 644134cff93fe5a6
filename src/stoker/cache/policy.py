"""Which sample makes room for another. Pure: numbers in, numbers out.

A policy only orders victims. The ledger knows what is resident, how large it is and whether it fits, and tells the policy
of every change. So the same policies serve the live cache and the simulator. No policy looks at all keys to find a victim.
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
    """Orders victims by key numbers only: it sees no bytes, sizes, clocks or locks."""

    def enter(self, key: int) -> None:
        """A key becomes resident."""

    def touch(self, key: int) -> None:
        """A resident key is used."""

    def leave(self, key: int) -> None:
        """A key is not resident any more."""

    def victims(self, newcomer: int) -> Iterable[int]:
        """The residents that may go for the newcomer, best first. If they are too few, the newcomer is turned away.

        Asking changes nothing. Only one such walk may run, and no other method may be called before it ends.
        """


class KeepFirst:
    """What came first stays. For one reader of a whole permutation per epoch no policy has more hits."""

    def enter(self, key: int) -> None:
        """Ignored: this policy has no state."""

    def touch(self, key: int) -> None:
        """Ignored: this policy has no state."""

    def leave(self, key: int) -> None:
        """Ignored: this policy has no state."""

    def victims(self, newcomer: int) -> Iterable[int]:
        """No resident goes for any newcomer."""
        return ()


class LeastRecent:
    """What was not used for longest goes first (LRU), as in a page cache. For comparison, and for unknown orders."""

    def __init__(self) -> None:
        # Not a dict: finding its first key walks over all deleted ones in front of it.
        self._keys: OrderedDict[int, None] = OrderedDict()

    def enter(self, key: int) -> None:
        """The key is the last to go."""
        self._keys[key] = None
        self._keys.move_to_end(key)

    def touch(self, key: int) -> None:
        """The key is the last to go again."""
        if key in self._keys:
            self.enter(key)

    def leave(self, key: int) -> None:
        """Forget the key."""
        self._keys.pop(key, None)

    def victims(self, newcomer: int) -> Iterable[int]:
        """All residents, the longest unused first."""
        return iter(self._keys)


class ReuseDistance:
    """What is used farthest in the future goes first, and only for a newcomer that is used sooner (Belady, with bypass).

    A heap holds the next use that each key had when it was last looked at. An outdated entry is noticed when it comes to
    the top: its key has left, was used since, or has a use that came into sight only now. When too many are outdated the
    heap is made anew. That also corrects keys whose use did not take place, as when an epoch is broken off.
    """

    def __init__(self, next_use: NextUse) -> None:
        self._next_use = next_use
        self._expected: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (-next use, key)

    def __contains__(self, key: int) -> bool:
        return key in self._expected

    def __iter__(self) -> Iterator[int]:
        return iter(self._expected)

    def enter(self, key: int) -> None:
        """Remember when the key is used next."""
        self._expect(key, self._next_use(key))
        if len(self._heap) > 2 * len(self._expected) + _SLACK:
            self._expected = {resident: self._next_use(resident) for resident in self._expected}
            self._heap = [(-position, resident) for resident, position in self._expected.items()]
            heapq.heapify(self._heap)

    def touch(self, key: int) -> None:
        """Remember when the key is used after this use."""
        if key in self._expected:
            self.enter(key)

    def leave(self, key: int) -> None:
        """Forget the key."""
        self._expected.pop(key, None)

    def victims(self, newcomer: int) -> Iterator[int]:
        """The residents that are used later than the newcomer, the farthest first."""
        return self.beyond(self._next_use(newcomer))

    def beyond(self, soon: int) -> Iterator[int]:
        """The residents that are used later than a position, the farthest first. It is a walk like `victims`."""
        offered: list[tuple[int, int]] = []
        try:
            while self._heap and -self._heap[0][0] > soon:
                entry = heapq.heappop(self._heap)
                position, key = -entry[0], entry[1]
                # A key that left and came back may be in the heap twice; then the two entries are adjacent.
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


def by_frequency(uses: Callable[[int], int]) -> Policy:
    """What this reader uses least often in all epochs goes first, and only for what it uses more often. For comparison.

    That is NoPFS's choice. It is reuse distance with another measure of how far a key is.
    """
    return ReuseDistance(lambda key: -uses(key))


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
