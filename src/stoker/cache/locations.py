"""Where each item of a disk tier lies: an index beside its segments, shared by all processes of the host.

It is a store of small values, so a killed process leaves it whole. It is not synced, and worth nothing after another boot:
then it is made anew from the segments. The same transaction adds items and moves the place for the next one.

    key of an item          where its payload lies
    (all ones)              where the next item goes, and how many bytes of payload all segments have
    (twelve ones) number    how many bytes of payload of a segment nobody asks for any more
"""

import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.cache import stores
from stoker.cache.inspection import StoreStats
from stoker.cache.segments import FIRST, FoundItem, Location
from stoker.cache.walking import KEY_BYTES
from stoker.memory import Bytes
from stoker.sealed import ItemDamagedError, payload_bytes

_LOCATION = struct.Struct("<QQQ")
_TAIL = struct.Struct("<QQq")
_DEAD = struct.Struct("<q")
_OWN = b"\xff" * 12
_TAIL_KEY = _OWN + b"\xff" * 4
_NO_LIMIT = 1 << 62
APPENDING = b"\xfe" * 7
"""Claimed by a process that appends to the last segment, or makes the index."""
FILES = ("data.mdb", "lock.mdb")
"""The files of the index."""


class Tail(NamedTuple):
    """Where the next item goes. There is no segment 0."""

    segment: int = 0
    at: int = FIRST
    written_bytes: int = 0


class Locations:
    """The index of a disk tier, as one process has it open."""

    def __init__(self, folder: Path) -> None:
        self.store = stores.acquire(folder)
        self.close = weakref.finalize(self, stores.release, self.store)
        self.close.atexit = False

    def find(self, key: bytes) -> Location | None:
        """Where an item is. Raises ItemDamagedError."""
        found = self.store.get(key)
        return None if found is None else Location(*_LOCATION.unpack(found))

    def holds(self, key: bytes) -> bool:
        """Whether an item is there."""
        return self.store.size(key) is not None

    def tail(self) -> Tail:
        """Where the next item goes."""
        found = self.store.get(_TAIL_KEY)
        return Tail() if found is None else Tail(*_TAIL.unpack(found))

    def add(self, found: Sequence[FoundItem], tail: Tail) -> bool:
        """Add items, and move the tail. Only one process at a time may. False: they are not added, as others write."""
        dead = self._replaced(found)
        values: list[tuple[bytes, Bytes]] = [(one.key, _LOCATION.pack(*one.location)) for one in found]
        values.append((_TAIL_KEY, _TAIL.pack(*tail)))
        values += [(key, _DEAD.pack(size)) for key, size in dead.items()]
        return self.store.put(values, _NO_LIMIT, [_TAIL_KEY, *dead]) > 0

    def _replaced(self, found: Sequence[FoundItem]) -> dict[bytes, int]:
        """How much is dead in each segment when other versions of some items are replaced, by the segment's key."""
        names = [one.key[:KEY_BYTES] for one in found]
        dead: dict[bytes, int] = {}

        def note(values: Sequence[Bytes | None]) -> None:
            for value in values:
                if value is not None and payload_bytes(len(value)) == _LOCATION.size:
                    number, _, length = _LOCATION.unpack_from(value)
                    key = _dead_key(number & 0xFFFFFFFF)
                    dead[key] = dead.get(key, 0) + payload_bytes(length)

        self.store.visit(names, note)
        return {key: size + self._dead(key) for key, size in dead.items()}

    def forget(self, key: bytes, location: Location | None) -> None:
        """Forget an item."""
        if location is None:
            self.store.put([], _NO_LIMIT, [key])
            return
        dead = _dead_key(location.segment)
        size = self._dead(dead) + payload_bytes(location.length)
        self.store.put([(dead, _DEAD.pack(size))], _NO_LIMIT, [key, dead])

    def dead_bytes(self, number: int) -> int:
        """How much payload of a segment nobody asks for any more."""
        return self._dead(_dead_key(number))

    def _dead(self, key: bytes) -> int:
        try:
            found = self.store.get(key)
        except ItemDamagedError:
            return 0
        return 0 if found is None else int(_DEAD.unpack(found)[0])

    def stats(self) -> StoreStats:
        """Its items, the payload of all segments, and nothing of the space that they take."""
        _, own = self.store.names(_OWN + bytes(4), 1 << 20)
        return StoreStats(self.store.stats().items - len(own), self.tail().written_bytes, 0)


def _dead_key(number: int) -> bytes:
    return _OWN + number.to_bytes(4, "big")
