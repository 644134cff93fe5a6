"""What a host gives to others: the protocol that the server asks."""

from collections.abc import Callable, Sequence
from typing import Protocol

from stoker.memory import Bytes
from stoker.wire.frames import Held, Told

Use = Callable[[Sequence[Bytes | None]], None]


class Items(Protocol):
    """Items of this host. Called by several threads. An OSError means that nothing is there."""

    def visit(self, keys: Sequence[bytes], use: Use) -> None:
        """Call `use`, which never waits, once with what lies under keys: sealed, gone afterwards, or None."""

    def which(self, known: int, after: bytes, limit: int) -> Held:
        """The names of items after a name, at most so many. None, as the last piece, if `known` is still the generation."""

    def told(self, who: bytes, told: Told) -> None:
        """The process of this name says what it holds."""
