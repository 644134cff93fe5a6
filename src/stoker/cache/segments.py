"""Files of a disk tier: many items in one file, written one after another and never changed once it is full.

    segment   head: magic, a random token | records | table of all records | end: magic, where the table is, checksum
    record    head: magic, length of the key, where the payload begins, its length, checksum | key | sealed payload

A payload begins where reading it touches no more pages than its length needs, so that the device gives what was asked for.
The table is written after the records have reached the device, so a segment with a table is believed. Of another one,
every record is read: what a crash of the host has left unwritten has no checksum, or a wrong one.

Items are read past the page cache (O_DIRECT) where the file system can. A file that was cut gives fewer bytes, and never a
signal, as nothing is mapped.
"""

import contextlib
import errno
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stoker.checksum import checksum
from stoker.memory import Bytes
from stoker.sealed import ItemDamagedError, check, payload_bytes, seal
from stoker.source.files import read_range

SEGMENT_BYTES = 128 << 20
"""A segment is full when it is this long. Its last item may be longer."""
_MAGIC = b"stoker segment 1"
_HEAD = struct.Struct("<16s16s")
_RECORD = struct.Struct("<4sIQQQ")
_RECORD_MAGIC = b"item"
_ROW = struct.Struct("<QQI")
_END = struct.Struct("<16sQQ")
_PAGE = 4096
_PIECE = 1 << 20
_MOST_BUFFERS = 512
_LONGEST_KEY = 511
FIRST = _HEAD.size
"""Where the first record of a segment begins."""
_aligned = threading.local()
"""Memory that a thread reads into past the page cache."""


class SegmentDamagedError(OSError):
    """The file is no segment."""


class Location(NamedTuple):
    """Where a sealed payload lies."""

    segment: int
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class FoundItem:
    """An item of a segment."""

    key: bytes
    location: Location


class Segment:
    """An open segment. It is closed with its last user: threads may still read what another has let go."""

    def __init__(self, folder: Path, number: int, *, writes: bool = False, is_new: bool = False) -> None:
        self.number = number
        self.path = folder / f"{number:08}.segment"
        self._is_closed, self._direct = True, -1
        flags = (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags | (os.O_CREAT | os.O_TRUNC if is_new else 0), 0o600)
        self._is_closed = False
        if is_new:
            self._token = secrets.token_bytes(16)
            _write(self._descriptor, 0, [_HEAD.pack(_MAGIC, self._token)])
            return
        head = os.pread(self._descriptor, _HEAD.size, 0)
        magic, self._token = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", b"")
        if magic != _MAGIC:
            raise SegmentDamagedError(f"{self.path} is damaged: it does not begin as a segment")
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        with contextlib.suppress(OSError):  # not every file system can
            self._direct = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECT)

    def __del__(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for descriptor in (self._descriptor, self._direct):
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def read(self, at: int, length: int) -> bytes:
        """Bytes of the segment, fewer where it was cut. The kernel keeps no copy of them."""
        if self._direct >= 0:
            try:
                return self._read_directly(at, length)
            except OSError as error:
                if error.errno != errno.EINVAL:  # or else the device wants larger pieces
                    raise
        return self.read_through_page_cache(at, length)

    def read_through_page_cache(self, at: int, length: int) -> bytes:
        """The same, when the kernel may have them, and leaves them."""
        found = read_range(self._descriptor, at, length)
        os.posix_fadvise(self._descriptor, at, length, os.POSIX_FADV_DONTNEED)
        return found

    def _read_directly(self, at: int, length: int) -> bytes:
        area: mmap.mmap | None = getattr(_aligned, "area", None)
        if area is None:
            area = _aligned.area = mmap.mmap(-1, _PIECE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not shared with children
        parts, end = [], at + length
        while at < end:
            begin = at - at % _PAGE
            size = min(_PIECE, -(-(end - begin) // _PAGE) * _PAGE)
            count = os.preadv(self._direct, [memoryview(area)[:size]], begin)
            part = area[at - begin : min(count, end - begin)]
            parts.append(part)
            at += len(part)
            if count < size:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        """How long the file is."""
        return os.fstat(self._descriptor).st_size

    def append(self, at: int, items: Sequence[tuple[bytes, Bytes]]) -> tuple[list[FoundItem], int]:
        """Write items from a place on. Returns where they are, and where the next begins. One process writes at a time."""
        parts: list[Bytes] = []
        found = []
        end = at
        for key, payload in items:
            sealed = seal(key, payload)
            begin = _place(end + _RECORD.size + len(key), len(sealed))
            parts += [self._record(end, key, begin, len(sealed)), key, bytes(begin - end - _RECORD.size - len(key)), sealed]
            found.append(FoundItem(key, Location(self.number, begin, len(sealed))))
            end = begin + len(sealed)
        _write(self._descriptor, at, parts)
        return found, end

    def _record(self, at: int, key: bytes, begin: int, length: int) -> bytes:
        name = self._token + at.to_bytes(8, "little")
        own = checksum(key + struct.pack("<QQ", begin, length), name)
        return _RECORD.pack(_RECORD_MAGIC, len(key), begin, length, own)

    def walk(self) -> Iterator[FoundItem]:
        """All records, from the first to the first that is none. Their payloads are not looked at."""
        at = FIRST
        while True:
            head = os.pread(self._descriptor, _RECORD.size + _LONGEST_KEY, at)
            if len(head) < _RECORD.size:
                return
            _, key_bytes, begin, length, _ = _RECORD.unpack_from(head)
            key = head[_RECORD.size : _RECORD.size + key_bytes]
            if head[: _RECORD.size] != self._record(at, key, begin, length):
                return
            yield FoundItem(key, Location(self.number, begin, length))
            at = begin + length

    def whole(self) -> tuple[list[FoundItem], int]:
        """The records whose payloads are right, and where the next one may be written."""
        found, end = [], FIRST
        for one in self.walk():
            _, at, length = one.location
            end = at + length
            with contextlib.suppress(ItemDamagedError):
                check(one.key, memoryview(self.read(at, length)))
                found.append(one)
        return found, end

    def finish(self) -> None:
        """Bring a full segment to the device, with a table of what is in it. Nothing is appended any more."""
        os.fsync(self._descriptor)
        rows, end = [], FIRST
        for one in self.walk():
            _, at, length = one.location
            rows.append(_ROW.pack(at, length, len(one.key)) + one.key)
            end = at + length
        table = b"".join(rows)
        os.ftruncate(self._descriptor, end)
        _write(self._descriptor, end, [table, _END.pack(_MAGIC, end, checksum(table, self._token))])
        os.fsync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def table(self) -> list[FoundItem] | None:
        """What is in a finished segment; None if it is not finished, or was cut."""
        size = self.size()
        end = os.pread(self._descriptor, _END.size, max(0, size - _END.size))
        magic, at, own = _END.unpack(end) if len(end) == _END.size else (b"", 0, 0)
        if magic != _MAGIC or not FIRST <= at <= size - _END.size:
            return None
        table = read_range(self._descriptor, at, size - _END.size - at)
        if checksum(table, self._token) != own:
            return None
        found, place = [], 0
        while place < len(table):
            begin, length, key_bytes = _ROW.unpack_from(table, place)
            place += _ROW.size + key_bytes
            found.append(FoundItem(table[place - key_bytes : place], Location(self.number, begin, length)))
        return found


def segments(folder: Path) -> list[int]:
    """The numbers of the segments in a folder, in the order in which they were begun."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(int(name[:8]) for name in os.listdir(folder) if name.endswith(".segment") and name[:8].isdigit())
    return []


def payloads_bytes(found: Sequence[FoundItem]) -> int:
    """The payloads of some items, together."""
    return sum(payload_bytes(one.location.length) for one in found)


def _place(at: int, length: int) -> int:
    """Where a payload begins from a place on: there, or at the next page if that saves one."""
    first, last = at // _PAGE, (at + length - 1) // _PAGE
    return at if last - first + 1 <= -(-length // _PAGE) else (first + 1) * _PAGE


def _write(descriptor: int, at: int, parts: Sequence[Bytes]) -> None:
    """Write all parts from a place on. Raises OSError, when a part of them may have been written."""
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        written = os.pwritev(descriptor, left[:_MOST_BUFFERS], at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
