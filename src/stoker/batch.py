"""A batch as a short description and the pieces of memory that it refers to.

The contents of arrays and tensors are not in the description. They lie in the slot already, because they were collated
there, or are copied into it now. Most batches are lists, tuples and dictionaries of tensors: for them the description is
a `Layout` of nothing but plain values, which costs a few microseconds. Everything else is pickled (protocol 5, buffers
out of band); small streams travel by themselves, long ones in the slot too. The two ends are processes of one user and
one loader: nothing else is ever unpickled here.

    Layout:  (offset, dtype, *shape)             a leaf: all integers
             [layout, ...]                       a list
             ("tuple", layout, ...)              a tuple
             {"key": layout, ...}                a dictionary
             "text", None, True, 1, 0.5          themselves
"""

import ctypes
import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import numpy as np

from stoker.memory import ByteArray

STREAM_INLINE_BYTES = 2048
"""A message below PIPE_BUF is written to a pipe in one piece, even if its writer is killed."""

Span = tuple[int, int]
"""Offset and length of bytes in the slot."""
Reducer = Callable[[Any], tuple[Any, ...]]
Layout = Any

_PLAIN = frozenset({str, bool, int, float, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})
_LAYOUT_WIDTH = 32
"""Longer containers are pickled: that is faster, part by part."""
_LAYOUT_TEXT = 1000
"""Longer text is pickled, and lies in the slot."""


class ByteRoom(Protocol):
    """Somewhere to put bytes."""

    def room(self, length: int) -> tuple[int, ByteArray]:
        """The next `length` bytes, and their offset."""

    def find(self, address: int) -> int | None:
        """The offset of an address, if `room` gave it out for this batch."""


class _Packer(ForkingPickler):
    """Pickles as multiprocessing does, with reducers of ours asked first."""

    def __init__(self, stream: io.BytesIO, reducers: Mapping[type, Reducer], keep: Callable[[Any], None]) -> None:
        super().__init__(stream, 5, True, keep)
        self.dispatch_table.update({np.ndarray: _reduce_array, **reducers})


class NoLayout(Exception):  # noqa: N818
    """The batch holds something that only pickle can describe."""


def lay_out(batch: Any, leaf: Callable[[Any], tuple[int, ...]]) -> Layout:
    """Describe a batch. `leaf` places what is not a container or a plain value, or raises NoLayout."""
    kind = type(batch)
    if kind in _PLAIN:
        if kind is str and len(batch) > _LAYOUT_TEXT:
            raise NoLayout
        return batch
    if kind not in _CONTAINERS:
        return leaf(batch)
    if len(batch) > _LAYOUT_WIDTH:
        raise NoLayout
    if kind is list:
        return [lay_out(part, leaf) for part in batch]
    if kind is tuple:
        return ("tuple", *(lay_out(part, leaf) for part in batch))
    if any(type(key) is not str for key in batch):
        raise NoLayout
    return {key: lay_out(part, leaf) for key, part in batch.items()}


def build(layout: Layout, leaf: Callable[..., Any]) -> Any:
    """Make the batch that a layout describes. `leaf` makes one from the numbers of a leaf."""
    kind = type(layout)
    if kind is list:
        return [build(part, leaf) for part in layout]
    if kind is dict:
        return {key: build(part, leaf) for key, part in layout.items()}
    if kind is not tuple:
        return layout
    if layout and layout[0] == "tuple":
        return tuple(build(part, leaf) for part in layout[1:])
    return leaf(*layout)


def pack(batch: object, reducers: Mapping[type, Reducer], room: ByteRoom) -> tuple[bytes | Span, tuple[Span, ...]]:
    """Write a batch: the stream (or where it lies), and the pieces that it refers to, in order."""
    pieces: list[Span] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        content = buffer.raw()
        # Only tensors of a reducer may lie in the slot already. An array over the slot is not this batch's: it is copied.
        pieces.append(place(content, room, look=isinstance(content.obj, ctypes.Array)))

    stream = io.BytesIO()
    _Packer(stream, reducers, keep).dump(batch)
    content = stream.getbuffer()
    if len(content) + 16 * len(pieces) <= STREAM_INLINE_BYTES:
        return bytes(content), tuple(pieces)
    # The pieces of a batch of many arrays are a long list themselves: they go before the stream.
    table = np.array(pieces, np.int64).reshape(-1, 2)
    header = np.array([len(pieces)], np.int64)
    return place(memoryview(b"".join((header.tobytes(), table.tobytes(), content))), room), ()


def unpack(stream: bytes | Span, pieces: Iterable[Span], slot: ByteArray) -> Any:
    """Read a batch. Arrays and tensors in it lie over `slot` and keep it alive."""
    if isinstance(stream, tuple):
        start, length = stream
        content = slot[start : start + length].tobytes()
        count = int.from_bytes(content[:8], "little")
        table = np.frombuffer(content, np.int64, 2 * count, 8).reshape(-1, 2)
        pieces, stream = [(start, length) for start, length in table.tolist()], content[8 + table.nbytes :]
    return pickle.loads(stream, buffers=[np.ndarray((length,), np.uint8, slot, start) for start, length in pieces])


def _reduce_array(array: Any) -> Any:
    """Reduce an array as NumPy does; but what arrives is writable and in this host's byte order, as with queues."""
    dtype = array.dtype
    if not dtype.isnative and dtype.names is None and pickle.DEFAULT_PROTOCOL < 5:
        array = array.astype(dtype.newbyteorder("="))
    return (array if array.flags.writeable else array.copy()).__reduce_ex__(5)


def place(content: Any, room: ByteRoom, *, look: bool = False) -> Span:
    """The offset of bytes in the slot. They are copied there, unless a `look` finds them there already."""
    source = np.frombuffer(content, np.uint8) if len(content) else np.empty(0, np.uint8)
    length = source.nbytes
    if not length:
        return 0, 0
    start = room.find(source.__array_interface__["data"][0]) if look else None
    if start is None:
        start, target = room.room(length)
        target[:] = source
    return start, length
