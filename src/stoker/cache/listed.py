"""Who makes room where several hosts have one cache: copies before listed samples. Pure; a policy for the ledger.

A listed sample is one that other hosts ask this one for. It makes room only for a sample that nobody else has, and only
when nobody uses it again in this epoch: then the next epoch reads from storage as much as it would have anyway. What other
hosts have, too, goes first, the farthest first.

    due ---used, here or elsewhere---> done ---the next epoch begins---> due          listed
    copy                                                                              not listed
"""

from collections.abc import Callable, Iterator
from enum import Enum

from stoker.cache.policy import ReuseDistance


class Arrival(Enum):
    """How a sample comes here."""

    FROM_STORAGE = "from storage"
    TAKEN_OVER = "taken over"
    COPY = "copy"


class ListedLast:
    """Copies go before listed samples, and these only where that costs nothing in sight. A policy for the ledger."""

    def __init__(self, next_use: Callable[[int], int]) -> None:
        self._next_use = next_use
        self._copies = ReuseDistance(next_use)
        self._done = ReuseDistance(next_use)
        """Listed, and used in this epoch."""
        self._due: set[int] = set()
        """Listed, and perhaps still used in this epoch, here or elsewhere."""
        self._arrival = Arrival.FROM_STORAGE
        self._is_ahead = False

    def expect(self, arrival: Arrival, *, is_ahead: bool) -> None:
        """How the next newcomers arrive: for a use that is being made, or ahead of it."""
        self._arrival, self._is_ahead = arrival, is_ahead

    def enter(self, key: int) -> None:
        """A newcomer stays."""
        if self._arrival is Arrival.COPY:
            self._copies.enter(key)
        elif self._is_ahead:
            self._due.add(key)
        else:
            self._done.enter(key)

    def touch(self, key: int) -> None:
        """It is used here."""
        self.used(key)
        self._done.touch(key)
        self._copies.touch(key)

    def used(self, key: int) -> None:
        """It is used, here or elsewhere."""
        if key in self._due:
            self._due.remove(key)
            self._done.enter(key)

    def leave(self, key: int) -> None:
        """Forget it."""
        self._due.discard(key)
        self._done.leave(key)
        self._copies.leave(key)

    def victims(self, newcomer: int) -> Iterator[int]:
        """Copies first, the farthest first; for what comes from storage also listed ones that are not used any sooner."""
        soon = self._next_use(newcomer)
        displaces_any = self._arrival is not Arrival.COPY and not self._is_ahead
        yield from self._copies.beyond(-1 if displaces_any else soon)
        if self._arrival is Arrival.FROM_STORAGE:
            yield from self._done.beyond(soon)

    def is_listed(self, key: int) -> bool:
        """Whether it is resident and listed."""
        return key in self._due or key in self._done

    def listed(self) -> list[int]:
        """All that are listed."""
        return [*self._due, *self._done]

    def begin_epoch(self) -> None:
        """All is used once more, by somebody."""
        self._due.update(self._done)
        self._done = ReuseDistance(self._next_use)

    def unlist(self, key: int) -> None:
        """Another host has taken it over: it is a copy."""
        if self.is_listed(key):
            self.leave(key)
            self._copies.enter(key)
