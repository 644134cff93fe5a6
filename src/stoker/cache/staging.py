"""Items that the reading process of the host has brought for one loader, in memory that has no name.

The loader's process makes the memory, the keeper writes to it, workers read. Nothing is locked: a payload carries
checksums over its key (`sealed`), so what is overwritten while it is copied is not found. If any of them is killed, the
memory goes with the last of the others.

    row of an item:   FREE -> COMING -> STAGED     its payload lies in the ring
                              COMING -> IN_STORE   it is in the cache, because it was read ahead: the first use is no hit
                              STAGED, IN_STORE -> USED
    a row, and its place in the ring, are free again when its batch was taken
    STAGED and IN_STORE are marked if the item came from another host

        0       numbers
        4096    rows: name of the item, state, offset, length
        then    the ring
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker.checksum import checksum
from stoker.checksum import load as load_checksum
from stoker.memory import PAGE, Bytes, Memory
from stoker.sealed import ItemDamagedError, seal, sealed_bytes, unseal

if TYPE_CHECKING:
    from stoker.cache.notes import Notes

FREE, COMING, STAGED, IN_STORE, USED = range(5)
FROM_PEER = 8
"""A mark on states."""
ROWS = 1 << 14
_LATE_NS = 1_000_000_000
_PROBES = 8
_RING_AT = PAGE + ROWS * 32
_NAME, _STATE, _OFFSET, _LENGTH = range(4)


class Staging:
    """What was brought for a loader, as its own processes see it. It travels to workers of any start method."""

    def __init__(self, capacity_bytes: int, memory: Memory | None = None, notes: "Notes | None" = None) -> None:
        load_checksum()
        self.notes = notes
        """Where workers note which files they open, if the keeper can use that."""
        self.capacity_bytes = capacity_bytes
        self.memory = memory or Memory(_RING_AT + capacity_bytes)
        mapping = self.memory.map(0, _RING_AT + capacity_bytes)
        self._bytes = memoryview(mapping.buffer)
        self._numbers: Any = self._bytes[:PAGE].cast("Q")
        self._rows: Any = self._bytes[PAGE:_RING_AT].cast("Q")

    def __reduce__(self) -> Any:
        return Staging, (self.capacity_bytes, self.memory, self.notes)

    def _row(self, key: bytes) -> int:
        """Where an item has its row; -1 if it has none."""
        rows, name = self._rows, _name(key)
        first = name % ROWS
        for row in range(first, first + _PROBES):
            at = row % ROWS * 4
            if rows[at] == name and rows[at + _STATE] != FREE:
                return at
        return -1

    def get(self, key: bytes) -> tuple[bytes, bool] | None:
        """A payload that was staged, and whether it came from another host."""
        at = self._row(key) if self._numbers[0] else -1
        state = self._rows[at + _STATE] if at >= 0 else FREE
        payload = self._payload(at, key)
        if payload is None:
            return None
        self._rows[at + _STATE] = USED
        return payload, bool(state & FROM_PEER)

    def look(self, key: bytes) -> bytes | None:
        """A payload that was staged. That somebody has looked is not noted."""
        return self._payload(self._row(key), key)

    def _payload(self, at: int, key: bytes) -> bytes | None:
        if at < 0 or self._rows[at + _STATE] not in (STAGED, STAGED | FROM_PEER, USED):
            return None
        offset, length = self._rows[at + _OFFSET], self._rows[at + _LENGTH]
        if not length or offset + length > self.capacity_bytes:
            return None
        try:
            return unseal(key, self._bytes[_RING_AT + offset : _RING_AT + offset + length])
        except ItemDamagedError:  # another one has its place by now
            return None

    def is_late(self) -> bool:
        """Whether the keeper has not been seen for long: then nobody waits for what it is bringing."""
        return bool(self._numbers[0]) and time.monotonic_ns() - self._numbers[1] > _LATE_NS

    @property
    def is_given_up(self) -> bool:
        """Whether the keeper has found that workers do not use what it brings."""
        return bool(self._numbers[2])

    def is_coming(self, key: bytes) -> bool:
        """Whether the keeper is just bringing an item. It holds the item's claim as long as it does."""
        at = self._row(key) if self._numbers[0] else -1
        return at >= 0 and self._rows[at + _STATE] == COMING

    def was_ahead(self, key: bytes) -> int:
        """For an item of the cache: not 0 if it was brought for this loader, and is used now for the first time.

        Then it is IN_STORE, marked if it came from another host.
        """
        if not self._numbers[0]:
            return 0
        at = self._row(key)
        state = self._rows[at + _STATE] if at >= 0 else FREE
        if state not in (COMING, IN_STORE, IN_STORE | FROM_PEER):
            return 0
        if self._rows[at + _LENGTH]:
            return 0  # its payload is staged, and another one has put it into the cache
        self._rows[at + _STATE] = USED
        return IN_STORE | (state & FROM_PEER)


def _name(key: bytes) -> int:
    return checksum(b"", key) | 1


@dataclass(slots=True)
class StagingRow:
    """A row that is being filled, and its part of the ring, if it has one."""

    work: int
    row: int
    start: int = 0
    end: int = 0
    is_free: bool = False
    was_asked_for: bool = False
    """A worker has got the item without it."""


class Stager:
    """The keeper's side: rows and the ring, first in, first out. All threads may use it."""

    def __init__(self, capacity_bytes: int, descriptor: int) -> None:
        self.staging = Staging(capacity_bytes, Memory(_RING_AT + capacity_bytes, descriptor=descriptor))
        self._lock = threading.Lock()
        self._ring: deque[StagingRow] = deque()
        self._places: deque[StagingRow] = deque()
        self._by_row: dict[int, StagingRow] = {}
        self._head = 0
        self.used = self.unused = 0
        """Items whose batch was taken: those that a worker has used, and the others."""
        self._numbers, self._rows = self.staging._numbers, self.staging._rows
        self._numbers[0] = 0
        self.beat()
        self._bytes = self.staging._bytes
        self._clear()

    def _clear(self) -> None:
        self._bytes[PAGE:_RING_AT] = bytes(_RING_AT - PAGE)  # of a keeper that was killed, perhaps

    def beat(self) -> None:
        """The keeper is at work."""
        self._numbers[1] = time.monotonic_ns()

    def give_up(self) -> None:
        """Say that nothing more is brought, because workers do not use it."""
        self._numbers[2] = 1

    @property
    def bytes_staged(self) -> int:
        """How much of the ring is in use."""
        with self._lock:
            return sum(place.end - place.start for place in self._ring if not place.is_free)

    def has(self, work: int, key: bytes) -> bool:
        """Whether an item is there or coming. Then it stays until this work is taken, too."""
        with self._lock:
            place = self._by_row.get(self.staging._row(key))
            if place is None or place.is_free:
                return False
            place.work = max(place.work, work)
            return True

    def announce(self, work: int, key: bytes) -> StagingRow | None:
        """A row for an item that goes to the cache. None if there is none free."""
        with self._lock:
            return self._announce(work, key, 0, 0)

    def reserve(self, work: int, key: bytes, size: int) -> StagingRow | None:
        """A row and room in the ring for a payload. None if there is none before other batches are taken."""
        length = sealed_bytes(size)
        with self._lock:
            start = self._room(length)
            return None if start is None else self._announce(work, key, start, length)

    def can_hold(self, size: int) -> bool:
        """Whether the ring is long enough for a payload, when it is empty."""
        return sealed_bytes(size) <= self.staging.capacity_bytes

    def _announce(self, work: int, key: bytes, start: int, length: int) -> StagingRow | None:
        name = _name(key)
        for row in range(name % ROWS, name % ROWS + _PROBES):
            at = row % ROWS * 4
            # Not by its state: a worker may write USED into a row that was freed while it copied the payload.
            if at not in self._by_row:
                self._rows[at + _OFFSET], self._rows[at + _LENGTH] = start, length
                self._rows[at] = name
                self._rows[at + _STATE] = COMING
                place = StagingRow(work, at, start, start + length)
                self._places.append(place)
                self._by_row[at] = place
                self._numbers[0] = len(self._places)
                if length:
                    self._ring.append(place)
                    self._head = place.end
                return place
        return None

    def _room(self, length: int) -> int | None:
        while self._ring and self._ring[0].is_free:
            self._ring.popleft()
        if not self._ring:
            self._head = 0
            return 0 if length <= self.staging.capacity_bytes else None
        tail = self._ring[0].start
        if self._head > tail:
            if self._head + length <= self.staging.capacity_bytes:
                return self._head
            return 0 if length < tail else None
        return self._head if self._head + length < tail else None

    def fill(
        self, place: StagingRow, key: bytes, payload: Bytes, *, is_from_peer: bool = False, is_used: bool = False
    ) -> None:
        """Put a payload where there is room for it. If it is used, a worker has it already."""
        sealed = seal(key, payload)
        if place.end - place.start != len(sealed):
            self.drop(place)
            return
        self._bytes[_RING_AT + place.start : _RING_AT + place.end] = sealed
        self._rows[place.row + _STATE] = USED if is_used else STAGED | (FROM_PEER * is_from_peer)

    def given(self, work: int, key: bytes) -> None:
        """A worker that did not wait has got the item: until this work is taken, nobody needs to bring it."""
        with self._lock:
            place = self._announce(work, key, 0, 0)
            if place is not None:
                place.was_asked_for = True
                self._rows[place.row + _STATE] = USED

    def confirm(self, place: StagingRow, *, is_from_peer: bool = False) -> None:
        """The item is in the cache now."""
        if self._rows[place.row + _STATE] == COMING:
            self._rows[place.row + _STATE] = IN_STORE | (FROM_PEER * is_from_peer)

    def drop(self, place: StagingRow) -> None:
        """The item is not brought after all."""
        with self._lock:
            self._free(place)

    def _free(self, place: StagingRow) -> None:
        if not place.is_free:
            place.is_free = True
            self._by_row.pop(place.row, None)
            self._rows[place.row + _STATE] = FREE

    def taken(self, before: int) -> None:
        """All batches before a number were taken: what was brought for them is not needed any more."""
        with self._lock:
            kept: deque[StagingRow] = deque()
            for place in self._places:
                state = self._rows[place.row + _STATE]
                if not place.is_free and (place.work >= before or state == COMING):
                    kept.append(place)  # one that is coming has a writer: it is free the next time
                elif not place.is_free:
                    is_used = state == USED
                    self.used += is_used and not place.was_asked_for
                    self.unused += not is_used
                    self._free(place)
            self._places = kept
            self._numbers[0] = len(kept)


_here = threading.local()
_everywhere: Staging | None = None


def current() -> Staging | None:
    """What is staged for the loader that this thread prepares samples for."""
    return getattr(_here, "staging", None) or _everywhere


def activate(staging: Staging) -> None:
    """Look there in this process from now on."""
    global _everywhere
    _everywhere = staging


def is_active() -> bool:
    """Whether this thread looks in some staging."""
    return getattr(_here, "staging", None) is not None


@contextlib.contextmanager
def active(staging: Staging | None) -> Iterator[None]:
    """Look there in this thread, within the context."""
    before = getattr(_here, "staging", None)
    _here.staging = staging
    try:
        yield
    finally:
        _here.staging = before
