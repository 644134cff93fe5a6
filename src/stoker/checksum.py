"""The checksum of bytes that may have changed since they were written: in a cache, on the way to another host.

XXH3 of 64 bits, by the library of its author. It does not protect against deliberate changes.
"""

from importlib import import_module
from typing import Any

CHECKSUM_BYTES = 8
"""Bytes of a checksum, written with the lowest byte first."""

_digest: Any = None


def load() -> None:
    """Load the library. Call this before the first checksum. Raises ImportError where the library is missing."""
    global _digest
    _digest = import_module("xxhash").xxh3_64_intdigest


def checksum(content: bytes | bytearray | memoryview, name: bytes = b"") -> int:
    """The checksum of bytes and a name: the same bytes under another name have another checksum."""
    value: int = _digest(content, _digest(name))
    return value
