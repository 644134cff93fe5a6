"""A batch as a short stream and the pieces of memory that it refers to.

Whatever a batch consists of is pickled (protocol 5); the contents of arrays and tensors stay out of the stream. They
lie in the slot already, because they were collated there, or are copied into it now. Small streams travel by themselves,
long ones in the slot too. The two ends are processes of one user and one loader: nothing else is ever unpickled here.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import numpy as np

from stoker.memory import Bytes

STREAM_INLINE_BYTES = 2048
"""A message is written to a pipe in one piece, whatever happens to its writer, while it stays below PIPE_BUF."""

Piece = tuple[int, int]
"""Offset and length of a piece in the slot."""
Reducer = Callable[[Any], tuple[Any, ...]]


class Room(Protocol):
    """Somewhere to put bytes."""

    def room(self, length: int) -> tuple[int, Bytes]:
        """The next `length` bytes, and their offset."""

    def find(self, address: int) -> int | None:
        """The offset of what lies at an address, if it was given out by `room` for this batch."""


class _Packer(ForkingPickler):
    """Pickles as multiprocessing does, with reducers of ours asked first."""

    def __init__(self, stream: io.BytesIO, reducers: Mapping[type, Reducer], keep: Callable[[Any], None]) -> None:
        super().__init__(stream, 5, True, keep)
        self.dispatch_table.update(reducers)


def pack(batch: object, reducers: Mapping[type, Reducer], room: Room) -> tuple[bytes | Piece, tuple[Piece, ...]]:
    """Write a batch: the stream (or where it lies), and the pieces that it refers to, in order."""
    pieces: list[Piece] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        pieces.append(_place(buffer.raw(), room))

    stream = io.BytesIO()
    _Packer(stream, reducers, keep).dump(batch)
    content = stream.getbuffer()
    if len(content) + 16 * len(pieces) <= STREAM_INLINE_BYTES:
        return bytes(content), tuple(pieces)
    # The pieces of a batch of many arrays are a long list themselves: they go before the stream.
    table = np.array(pieces, np.int64).reshape(-1, 2)
    header = np.array([len(pieces)], np.int64)
    return _place(memoryview(b"".join((header.tobytes(), table.tobytes(), content))), room), ()


def unpack(stream: bytes | Piece, pieces: Iterable[Piece], slot: Bytes) -> Any:
    """Read a batch. Arrays and tensors in it lie over `slot` and keep it alive."""
    if isinstance(stream, tuple):
        start, length = stream
        content = slot[start : start + length].tobytes()
        count = int.from_bytes(content[:8], "little")
        table = np.frombuffer(content, np.int64, 2 * count, 8).reshape(-1, 2)
        pieces, stream = [(start, length) for start, length in table.tolist()], content[8 + table.nbytes :]
    return pickle.loads(stream, buffers=[np.ndarray((length,), np.uint8, slot, start) for start, length in pieces])


def _place(content: memoryview, room: Room) -> Piece:
    length = content.nbytes
    if not length:
        return 0, 0
    source = np.frombuffer(content, np.uint8)
    start = room.find(source.__array_interface__["data"][0])
    if start is None:
        start, target = room.room(length)
        target[:] = source
    return start, length
