"""What is wanted from a cache, and how to get it from storage."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.memory import Bytes
from stoker.meter import Tally, now


class WantedItems(Protocol):
    """Items that are wanted together, and how to get them from storage. Positions count within the request."""

    @property
    def keys(self) -> list[bytes]:
        """The keys of the items, versions included."""

    def sizes(self, positions: list[int]) -> Sequence[int]:
        """The sizes of the items in bytes."""

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        """Read items from storage."""

    def is_settled(self, position: int) -> bool:
        """Whether an item is certain to be of the version in its key: it did not change while it was read."""

    def kept(self, positions: list[int]) -> None:
        """Called when items are in the cache, so that the kernel's copy of them is not needed any more."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy has decided on a request, where the order of all requests is known."""

    admitted: Collection[int]
    """The positions to be kept if they are not there yet."""
    evicted: Sequence[bytes]
    """The keys to forget for these."""


def read_plainly(request: WantedItems, count: int, tally: Tally) -> list[Bytes]:
    """Read all items of a request from storage."""
    began = now()
    result = list(request.read(list(range(count))))
    for payload in result:
        tally.miss(len(payload), is_looked_for=False)
    tally.spent(now() - began)
    return result
