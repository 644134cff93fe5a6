"""What came back for a request, and the memory that it lies in.

Rule: memory is used again and again, because new pages cost more than the bytes that go through them. An answer has its
memory until `release`, or until it is forgotten.
"""

import threading
from collections.abc import Sequence
from types import TracebackType

from stoker.memory import Bytes

_STEP_BYTES = 1 << 20


class Buffers:
    """Memory for answers. Shared by threads."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Memory of at least this size: what was used last, because it is still in the processor's cache."""
        with self._lock:
            for place in reversed(range(len(self._free))):
                if len(self._free[place]) >= size:
                    return self._free.pop(place)
            if self._free:
                self._free.pop(0)  # too small for what comes now
        return bytearray(-(-size // _STEP_BYTES) * _STEP_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Memory that nobody uses any more."""
        with self._lock:
            if sum(map(len, self._free)) + len(buffer) <= self._kept_bytes:
                self._free.append(buffer)


class ItemsAnswer:
    """Items in the order in which they were asked for. What is None has to come from elsewhere.

    `later` has the positions of items that are there, but did not fit into this answer, and their sizes. `damaged` counts
    items whose bytes were wrong, or those of another item: they are None, too. If the peer has not answered, `is_missing`:
    nothing is known of what it has.
    """

    __slots__ = ("_buffer", "_buffers", "damaged", "is_missing", "later", "payloads", "sealed")

    def __init__(
        self,
        payloads: Sequence[Bytes | None],
        sealed: Sequence[Bytes | None],
        later: dict[int, int] | None = None,
        damaged: int = 0,
        buffers: Buffers | None = None,
        buffer: bytearray | None = None,
        *,
        is_missing: bool = False,
    ) -> None:
        self.payloads = payloads
        self.sealed = sealed
        """As the store keeps them: `Store.put(..., is_sealed=True)`."""
        self.later = later or {}
        self.damaged = damaged
        self.is_missing = is_missing
        self._buffers = buffers
        self._buffer = buffer

    def release(self) -> None:
        """Give the memory back. Its items must not be used any more."""
        self.payloads = self.sealed = ()
        buffer, self._buffer = self._buffer, None
        if buffer is not None and self._buffers is not None:
            self._buffers.give_back(buffer)

    def __enter__(self) -> "ItemsAnswer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def nothing(count: int) -> ItemsAnswer:
    """The answer of a peer that does not answer."""
    none = (None,) * count
    return ItemsAnswer(none, none, is_missing=True)
