"""What goes over a line: plain values marshalled, everything else pickled, each with its length before it."""

import marshal
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

_HEADER = 4
MARSHALLED = b"plain:"
"""How a marshalled message begins; a pickle begins otherwise."""

_PLAIN = frozenset({int, str, float, bool, type(None)})
_WITHOUT_REFERENCES = 2
"""The version of marshal's format to write. Later ones look up each value, in case it was written before."""


class Plain(tuple[Any, ...]):
    """An order or report of plain values only. It is marshalled. A received report is passed to `arrive`."""

    __slots__ = ()


def is_plain(value: Any) -> bool:
    """Whether marshal gives back an equal value: exact plain types only. (It silently turns other buffers into bytes.)"""
    kind = type(value)
    if kind is list or kind is tuple:
        return _PLAIN.issuperset(map(type, value)) or all(map(is_plain, value))
    return kind in _PLAIN


def pickled(message: object) -> bytes:
    """Pickle, as multiprocessing does."""
    return bytes(ForkingPickler.dumps(message))


def marshalled(message: Any) -> bytes:
    """Marshal plain values."""
    return MARSHALLED + marshal.dumps(message, _WITHOUT_REFERENCES)


def opened(content: bytes) -> Any:
    """Undo `pickled` or `marshalled`."""
    if content.startswith(MARSHALLED):
        return marshal.loads(memoryview(content)[len(MARSHALLED) :])
    return pickle.loads(content)


def framed(content: bytes) -> bytes:
    """Put the length before a message."""
    return len(content).to_bytes(_HEADER, "little") + content


class Frames:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_missing", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the messages that are now complete."""
        self._missing -= len(data)
        if self._parts or self._missing > 0:
            self._parts.append(data)
            if self._missing > 0:
                return []  # a long message: it is put together once, when all of it is there
            data = b"".join(self._parts)
            self._parts = []
        messages, start, end = [], 0, len(data)
        self._missing = 0
        while start < end:
            body = start + _HEADER
            stop = body + int.from_bytes(data[start:body], "little") if body <= end else body
            if stop > end or body > end:
                self._parts = [data[start:]]
                self._missing = stop - end
                break
            messages.append(data[body:stop])
            start = stop
        return messages
