"""Which files the samples of a loader are in: a list that its process writes down once, in memory without a name.

The paths are joined by zero bytes, one for each sample in the order of the indices. A sample without a file has an empty
path; one that is a range of a file has `range_entry` in its place. There may be a million, so that neither side makes an
object of each: a path is cut out when it is needed.
"""

import hashlib
import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stoker.memory import nameless_file
from stoker.source.files import shared_file_key, shared_range_key

MOST_BYTES = 512 << 20
"""Longer lists would take seconds of the training process, and as much memory for each rank."""


def write_table(paths: Sequence[str]) -> int | None:
    """A descriptor of the list; None if it would be too long."""
    content = os.fsencode("\0".join(paths))
    if len(content) > MOST_BYTES or content.count(b"\0") != len(paths) - 1:
        return None
    descriptor = nameless_file()
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return descriptor


class Where(NamedTuple):
    """The bytes of a sample: a whole file, or a range of one that has not changed since the range was found out."""

    path: bytes
    offset: int = 0
    length: int = -1
    version: bytes = b""


def range_entry(path: str, offset: int, length: int, version: bytes) -> str:
    """What stands in the table for a range of a file of a version: unlike a path, it begins with a digit."""
    return f"{offset}:{length}:{_digest(version)}:{path}"


def where(entry: bytes) -> Where:
    """What an entry of the table means."""
    if entry[:1] == b"/":
        return Where(entry)
    offset, length, version, path = ([*entry.split(b":", 3), b"", b"", b""])[:4]
    if not path or not (offset.isdigit() and length.isdigit()):
        return Where(entry)
    return Where(path, int(offset), int(length), version)


def shared_key(entry: bytes, roots: tuple[str, ...]) -> bytes | None:
    """What an entry's bytes are called in the caches of several hosts."""
    wanted = where(entry)
    if wanted.length < 0:
        return shared_file_key(wanted.path, roots)
    return shared_range_key(wanted.path, wanted.offset, wanted.length, roots)


def is_of(version: bytes, wanted: Where) -> bool:
    """Whether a file of a version is the one that a range was found out for."""
    return _digest(version).encode() == wanted.version


def _digest(version: bytes) -> str:
    return hashlib.blake2b(version, digest_size=8).hexdigest()


class KeeperTable:
    """The list in the keeper."""

    def __init__(self, descriptor: int) -> None:
        try:
            length = os.fstat(descriptor).st_size
            if not 0 < length <= MOST_BYTES:
                raise ValueError(f"a table of {length} bytes")
            self._content = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self.digest = hashlib.blake2b(self._content, digest_size=16).digest()
        """Of the whole list: loaders with the same files have the same."""
        ends = np.flatnonzero(np.frombuffer(self._content, np.uint8) == 0)
        self._bounds = np.concatenate([[-1], ends, [length]]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def path(self, index: int) -> bytes:
        """The path of a sample's file, which may be empty."""
        return self._content[int(self._bounds[index]) + 1 : int(self._bounds[index + 1])]
