"""The bytes of a disk tier: items in segments, found by their locations, within an exact budget.

What came first stays. Nothing that was written is moved or written again, so the budget counts the payload of everything
that was written, also of items that have changed since. Errors are OSErrors; a damaged item raises ItemDamagedError.

One process at a time writes: it holds a claim while it appends to the last segment and adds the locations. If it is killed
in between, the next writer overwrites what has no location.
"""

import contextlib
import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from stoker.cache.claims import Claims
from stoker.cache.inspection import StoreStats
from stoker.cache.locations import APPENDING, Locations, Tail
from stoker.cache.segments import FIRST, SEGMENT_BYTES, Location, Segment, SegmentDamagedError
from stoker.cache.shelf import Budget
from stoker.cache.store import StoreBusyError, StoreFullError
from stoker.memory import Bytes
from stoker.sealed import BLOCK_BYTES, ItemDamagedError, check, check_block, payload_bytes

T = TypeVar("T")

_RESERVE_BYTES = 64 << 20
"""What is always left free on the file system."""
_OPEN = 128
"""So many segments a process has open, if that is a quarter of its descriptors at most: each has two."""
_PAUSE_S = 30.0


class OpenDiskTier:
    """An open disk tier, in one process."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._budget = Budget(folder)
        self._locations = Locations(folder)
        self._claims = Claims(folder / "claims")
        self._open: OrderedDict[int, Segment] = OrderedDict()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = _OPEN if descriptors == resource.RLIM_INFINITY else min(_OPEN, descriptors // 8)
        self._lock = threading.Lock()
        self._paused_until = 0.0

    def size(self, key: bytes) -> int | None:
        """How many bytes an item has; None if it is not there."""
        location = self._locations.find(key)
        return None if location is None else payload_bytes(location.length)

    def get(self, key: bytes) -> Bytes | None:
        """The payload of an item."""
        location = self._locations.find(key)
        if location is None:
            return None
        return self._checked(location, lambda read: check(key, memoryview(read(location.at, location.length))))

    def get_block(self, key: bytes, number: int) -> bytes | None:
        """One block of an item."""
        location = self._locations.find(key)
        if location is None:
            return None
        length, at = payload_bytes(location.length), number * BLOCK_BYTES

        def block(read: Callable[[int, int], bytes]) -> bytes:
            found = read(location.at + at, max(0, min(BLOCK_BYTES, length - at)))
            check_block(key, found, number, read(location.at + length, location.length - length))
            return found

        return self._checked(location, block)

    def _checked(self, location: Location, take: Callable[[Callable[[int, int], bytes]], T]) -> T:
        """Read and check. What is wrong is read again, by the page cache: this process may have forked meanwhile."""
        try:
            segment = self._segment(location.segment)
        except (FileNotFoundError, SegmentDamagedError):  # the others may be whole
            raise ItemDamagedError from None
        try:
            return take(segment.read)
        except ItemDamagedError:
            return take(segment.read_through_page_cache)

    def _segment(self, number: int) -> Segment:
        with self._lock:
            segment = self._open.get(number)
            if segment is None:
                segment = self._open[number] = Segment(self.folder, number)
                if len(self._open) > max(1, self._most_open):
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            return segment

    def written_bytes(self) -> int:
        """The payload of everything that was written."""
        return self._locations.tail().written_bytes

    def room_bytes(self) -> int:
        """The longest item that there is room for now."""
        if time.monotonic() < self._paused_until:
            return -1
        return self._budget.bytes() - self.written_bytes()

    def put(self, items: Sequence[tuple[bytes, Bytes]]) -> int:
        """Keep items that fit, in their order. Returns how many are kept.

        Raises StoreFullError when the file system is full, StoreBusyError when another process has been writing for long.
        """
        if not items or time.monotonic() < self._paused_until:
            return 0
        try:
            self._look_for_room(sum(len(payload) for _, payload in items))
            if not self._claims.wait(APPENDING):
                raise StoreBusyError(f"another process has been writing to {self.folder} for long")
            try:
                kept, full = self._append(items)
            finally:
                self._claims.release([APPENDING])
        except (StoreFullError, StoreBusyError):
            self._paused_until = time.monotonic() + _PAUSE_S
            raise
        if full is not None:
            try:
                full.finish()  # nobody writes to it any more, and nobody waits for the device meanwhile
            except OSError as error:
                raise StoreFullError(f"{self.folder} cannot be written ({error.strerror})") from error
        return kept

    def _append(self, items: Sequence[tuple[bytes, Bytes]]) -> tuple[int, Segment | None]:
        """Append items that fit. Returns how many, and the segment that is full now."""
        tail = self._locations.tail()
        left = self._budget.bytes() - tail.written_bytes
        fitting = []
        for key, payload in items:
            if len(payload) <= left and not self._locations.holds(key):
                fitting.append((key, payload))
                left -= len(payload)
        if not fitting:
            return 0, None
        try:
            segment, at = self._last_segment(tail)
            found, end = segment.append(at, fitting)
        except OSError as error:
            raise StoreFullError(f"{self.folder} cannot be written ({error.strerror})") from error
        is_full = end >= self._segment_bytes
        written = tail.written_bytes + sum(len(payload) for _, payload in fitting)
        after = Tail(segment.number + 1, FIRST, written) if is_full else Tail(segment.number, end, written)
        if not self._locations.add(found, after):
            return 0, None
        return len(fitting), segment if is_full else None

    def _last_segment(self, tail: Tail) -> tuple[Segment, int]:
        """The segment that is written to, and where. One that was cut or damaged is left as it is, and the next begun."""
        if tail.segment and tail.at != FIRST:
            with contextlib.suppress(FileNotFoundError, SegmentDamagedError):
                segment = Segment(self.folder, tail.segment, writes=True)
                if segment.size() >= tail.at:
                    return segment, tail.at
            return Segment(self.folder, tail.segment + 1, writes=True, is_new=True), FIRST
        return Segment(self.folder, tail.segment or 1, writes=True, is_new=True), FIRST

    def _look_for_room(self, size: int) -> None:
        place = os.statvfs(self.folder)
        if place.f_bavail * place.f_frsize < size + _RESERVE_BYTES:
            raise StoreFullError(f"the file system of {self.folder} is full")

    def drop(self, key: bytes) -> None:
        """Forget a damaged item. The bytes that it has in its segment still count."""
        try:
            location = self._locations.find(key)
        except ItemDamagedError:
            location = None
        if not self._claims.wait(APPENDING):
            return
        try:
            self._locations.forget(key, location)
        finally:
            self._claims.release([APPENDING])

    def is_there(self) -> bool:
        """Whether the folder still has what is open here."""
        return self._locations.store.is_there()

    def stats(self) -> StoreStats:
        """What is in the tier."""
        return self._locations.stats()

    def close(self) -> None:
        """Close it in this process."""
        self._locations.close()
        self._claims.close()
        with self._lock:
            self._open.clear()
