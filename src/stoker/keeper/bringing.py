"""Bringing one file near, before a worker asks for it: into the cache if there is room, else into the loader's staging.

Keys, claims and budget are those of the cache, so that a worker that wants the same file meanwhile waits for it, and
nothing is kept that workers would not keep. What is there, or what another process is just reading, is left alone. So is
a file that was changed just now. Nothing here is an error: what is not brought is read by a worker, which raises.
"""

import contextlib
import enum
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.cache import stores
from stoker.cache.asked import Origin
from stoker.cache.claims import Claims
from stoker.cache.shelf import Budget
from stoker.cache.staging import Stager, StagingRow
from stoker.cache.store import StoreBusyError, StoreFullError
from stoker.cache.tier import DiskTier
from stoker.keeper.far import Far
from stoker.keeper.reuse import Reuse
from stoker.keeper.table import Where, is_of, where
from stoker.memory import Bytes
from stoker.meter import now
from stoker.source.files import (
    drop_from_page_cache,
    file_key,
    file_version,
    is_old_enough,
    range_key,
    read_range,
    shared_file_key,
    shared_range_key,
)

LONGEST_BYTES = 64 << 20
"""Workers do not get longer files from the cache."""
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC


class Brought(enum.Enum):
    """What became of a file."""

    READ = enum.auto()
    LEFT = enum.auto()
    """It is there, or it cannot be brought."""
    NO_ROOM = enum.auto()
    """The staging is full until batches are taken."""


class Near:
    """A cache as the keeper uses it: no job of the cache's, so that it keeps no budget alive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk: DiskTier | None = None
        self.store = stores.acquire(folder)
        self.claims = Claims(folder / "claims")
        self.budget = Budget(folder)
        self.reuse: Reuse | None = None
        """Decides what is kept, if that is not left to who comes first."""

    def has_room(self, size: int) -> bool:
        """Whether the cache would keep an item of a size."""
        return self.has_room_in_memory(size) or (self.disk is not None and size <= self.disk.room_bytes())

    def has_room_in_memory(self, size: int) -> bool:
        """Whether it would keep it in memory."""
        return size <= self.budget.bytes() - self.store.payload_bytes()

    def holds(self, key: bytes) -> bool:
        """Whether an item is in the cache."""
        return self.store.size(key) is not None or (self.disk is not None and self.disk.size(key) is not None)

    def get(self, key: bytes) -> Bytes | None:
        """An item of the cache."""
        found = self.store.get(key)
        return self.disk.get(key) if found is None and self.disk is not None else found

    def close(self) -> None:
        """Close the store in this process, if nobody else uses it."""
        if self.reuse is not None:
            self.reuse.close()
        if self.disk is not None:
            self.disk.close()
        stores.release(self.store)
        stores.close_unused()
        self.claims.close()


class Bringing:
    """For one loader: where its files go. With `far`, other hosts are asked before storage."""

    def __init__(
        self, near: Near, stager: Stager, roots: tuple[str, ...], *, fills_cache: bool, is_shared: bool, far: Far | None
    ) -> None:
        self.near, self.stager, self.far = near, stager, far
        self._roots, self._is_shared = roots, is_shared
        self._folders = tuple(os.fsencode(root) for root in roots)
        self._fills_cache = fills_cache
        """Whether the cache keeps what comes first. Other policies decide as they order, and their workers keep it."""
        self.bytes_read = 0
        self.latest_work = 0
        """The last work that is ordered."""

    def bring(self, work: int, entry: bytes, about_to_read: Callable[[], None] = lambda: None) -> tuple[Brought, float]:
        """Bring a file for a work, or a range of one (`table`). Returns how long reading took, too."""
        try:
            wanted = where(entry)
            found = self._find(wanted)
            if found is None:
                return Brought.LEFT, 0.0
            key, size = found
            if self.stager.has(work, key) or self.near.holds(key):
                return Brought.LEFT, 0.0
            if not self.near.claims.claim(key):
                return Brought.LEFT, 0.0
            try:
                if self.near.holds(key):
                    return Brought.LEFT, 0.0
                about_to_read()
                return self._read(work, wanted.path, key, size, wanted.offset)
            finally:
                self.near.claims.release([key])
        except FileNotFoundError:
            if not self.near.store.is_there():
                raise  # the cache itself has been removed
        except PermissionError:
            pass
        return Brought.LEFT, 0.0

    def _find(self, wanted: Where) -> tuple[bytes, int] | None:
        """The key and the size of what is wanted; None if it is not brought. Raises OSError."""
        return self._look(wanted.path) if wanted.length < 0 else self._look_at_range(wanted)

    def _look(self, path: bytes) -> tuple[bytes, int] | None:
        """The key and the size of a file; None if it is none that is brought. Raises OSError."""
        if not path.startswith(self._folders):
            return None
        status = os.stat(path)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or not 0 < size <= LONGEST_BYTES or not is_old_enough(status):
            return None
        name = shared_file_key(path, self._roots) if self._is_shared else file_key(path)
        return None if name is None else (name + file_version(status), size)

    def _look_at_range(self, wanted: Where) -> tuple[bytes, int] | None:
        """The key and the size of a range; None if its file is not as it was when the range was found out."""
        status = os.stat(wanted.path)
        version = file_version(status)
        if not 0 < wanted.length <= LONGEST_BYTES or not is_old_enough(status) or not is_of(version, wanted):
            return None
        place = wanted.path, wanted.offset, wanted.length
        name = shared_range_key(*place, self._roots) if self._is_shared else range_key(*place)
        return None if name is None else (name + version, wanted.length)

    def _read(self, work: int, path: bytes, key: bytes, size: int, offset: int) -> tuple[Brought, float]:
        if self.far is not None and self.far.has(key):
            outcome = self._bring_from_afar(self.far, work, key, size)
            if outcome is not None:
                return outcome
        keeps = self._fills_cache and self.near.has_room(size)
        descriptor = os.open(path, _READ_ONLY)
        place: StagingRow | None = None
        try:
            if not keeps and self.near.reuse is None and _is_cached(descriptor, offset, size):
                return Brought.LEFT, 0.0  # the kernel has it: a worker is as fast by itself
            if not keeps and not self.stager.can_hold(size):
                return Brought.LEFT, _warm(descriptor, offset, size)
            place = self.stager.announce(work, key) if keeps else self.stager.reserve(work, key, size)
            if place is None:
                return Brought.NO_ROOM, 0.0
            began = now()
            payload = read_range(descriptor, offset, size)
            took_s = now() - began
            if len(payload) != size or not key.endswith(file_version(os.fstat(descriptor))):
                return Brought.LEFT, 0.0
            self.bytes_read += size
            if not keeps:
                self._stage(place, key, payload)
                place = None
            elif self._keep(key, payload):
                self.stager.confirm(place)
                place = None
                drop_from_page_cache(descriptor, offset, size)
            return Brought.READ, took_s
        finally:
            os.close(descriptor)
            if place is not None:
                self.stager.drop(place)

    def _bring_from_afar(self, far: Far, work: int, key: bytes, size: int) -> tuple[Brought, float] | None:
        """Bring an item from another host. None if it has to come from storage."""
        keeps = self._keeps_copy(size)
        if not keeps and not self.stager.can_hold(size):
            return Brought.LEFT, 0.0
        place: StagingRow | None = self.stager.announce(work, key) if keeps else self.stager.reserve(work, key, size)
        if place is None:
            return Brought.NO_ROOM, 0.0
        try:
            began = now()
            payload = far.fetch(key)
            took_s = now() - began
            if payload is None or len(payload) != size:
                return None
            if not keeps:
                self._stage(place, key, payload, is_from_peer=True)
                place = None
            elif self._keep(key, payload, is_copy=True):
                self.stager.confirm(place, is_from_peer=True)
                place = None
            return Brought.READ, took_s
        finally:
            if place is not None:
                self.stager.drop(place)

    def _stage(
        self, place: StagingRow, key: bytes, payload: Bytes, *, is_from_peer: bool = False, is_used: bool = False
    ) -> None:
        self.stager.fill(place, key, payload, is_from_peer=is_from_peer, is_used=is_used)
        if self.near.reuse is not None:
            self.near.reuse.brought(key)

    def _keeps_copy(self, size: int) -> bool:
        return self._fills_cache and self.far is not None and self.far.keeps_copies and self.near.has_room(size)

    def copy(self, entry: bytes) -> bool:
        """Keep a copy of an item that another host holds, if there is room. False: there is none."""
        found = self._find(where(entry))
        if found is None or self.far is None or self.near.holds(found[0]):
            return True
        key, size = found
        if not self._keeps_copy(size):
            return False
        if self.far.has(key) and self.near.claims.claim(key):
            try:
                payload = self.far.fetch(key)
                if payload is not None and len(payload) == size:
                    self._keep(key, payload, is_copy=True)
            finally:
                self.near.claims.release([key])
        return True

    def give(self, key: bytes, path: bytes) -> tuple[Bytes, Origin] | None:
        """An item that a worker waits for, from wherever it is. Raises OSError."""
        found = self.near.get(key)
        if found is None and not self.near.claims.claim(key):
            if not self.near.claims.wait(key):  # a reader is just bringing it
                return None
            found = self.near.get(key)
        try:
            if found is not None:
                return found, Origin.CACHE
            staged = self.stager.staging.get(key)
            if staged is not None:
                return staged[0], Origin.PEER if staged[1] else Origin.STORAGE
            given = self._give_from_afar(key) or self._give_from_storage(key, path)
            if given is not None:
                self._note_given(key, given[0])
            return given
        finally:
            self.near.claims.release([key])

    def _note_given(self, key: bytes, payload: Bytes) -> None:
        """What a worker got is not brought again. By the rule of reuse it is there when its batch is decided on."""
        place = None if self.near.reuse is None else self.stager.reserve(self.latest_work, key, len(payload))
        if place is None:
            self.stager.given(self.latest_work, key)
        else:
            self._stage(place, key, payload, is_used=True)

    def _give_from_afar(self, key: bytes) -> tuple[Bytes, Origin] | None:
        payload = self.far.fetch(key) if self.far is not None else None
        if payload is None:
            return None
        if self._keeps_copy(len(payload)):
            self._keep(key, payload, is_copy=True)
        return payload, Origin.PEER

    def _give_from_storage(self, key: bytes, path: bytes) -> tuple[Bytes, Origin] | None:
        found = self._look(path)
        if found is None or found[0] != key:
            return None
        descriptor = os.open(path, _READ_ONLY)
        try:
            payload = read_range(descriptor, 0, found[1])
            if len(payload) != found[1] or not key.endswith(file_version(os.fstat(descriptor))):
                return None
            if self._fills_cache and self.near.has_room(len(payload)) and self._keep(key, payload):
                drop_from_page_cache(descriptor)
            return payload, Origin.STORAGE
        finally:
            os.close(descriptor)

    def _keep(self, key: bytes, payload: bytes, *, is_copy: bool = False) -> bool:
        disk = self.near.disk
        with contextlib.suppress(StoreFullError, StoreBusyError):
            is_near = disk is None or self.near.has_room_in_memory(len(payload))
            if is_near and self.near.store.put([(key, payload)], self.near.budget.bytes()):
                if self.far is not None:
                    self.far.kept(key, is_copy=is_copy)
                return True
        return disk is not None and disk.put([(key, payload)]) > 0  # other hosts are not told of it


def bring_all(
    bringing: Bringing, work: int, paths: Sequence[bytes], about_to_read: Callable[[], None]
) -> tuple[Brought, float]:
    """Bring the files of a sample. Returns how long reading took, too."""
    whole, whole_s = Brought.LEFT, 0.0
    for path in paths:
        outcome, took_s = bringing.bring(work, path, about_to_read)
        if outcome is Brought.NO_ROOM:
            return outcome, 0.0
        whole_s += took_s
        if outcome is Brought.READ:
            whole = outcome
    return whole, whole_s


def _is_cached(descriptor: int, offset: int, size: int) -> bool:
    """Whether the kernel can give a range without reading it, as far as its first and last byte tell."""
    byte = bytearray(1)
    try:
        return all(os.preadv(descriptor, [byte], at, os.RWF_NOWAIT) == 1 for at in (offset, offset + size - 1))
    except OSError:  # it would have to read, or cannot tell
        return False


def _warm(descriptor: int, offset: int, size: int) -> float:
    """Let the kernel read a range into the page cache. Returns how long that took."""
    began = now()
    buffer = bytearray(min(size, 1 << 20))
    at, end = offset, offset + size
    while at < end and (count := os.preadv(descriptor, [buffer], at)) > 0:
        at += count
    return now() - began
