"""Bytes under keys, shared by all processes of a host, within an exact budget. The one home of LMDB.

A store is a folder with an LMDB environment in it. Every process opens its own, after a fork too: a process's transactions
mean nothing in its children. Writes are transactions in which the sum of all payloads stands beside them, so that neither
a kill nor a full file system can part the two. Nothing is synced: what a crash of the host leaves of memory is nothing.
"""

import contextlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError
from stoker.memory import headroom_bytes
from stoker.source.reading import Bytes

try:
    import lmdb
except ImportError:
    lmdb = None  # type: ignore[assignment]

KEY_BYTES = 16
"""A key names an item; what follows it, if anything, is the item's version."""
READERS = 2048
_READER_BYTES = 64
RESERVE_BYTES = 64 << 20
"""Memory that is left to the training, whatever the budget says."""
_LOOK_AGAIN_BYTES = 32 << 20
_MAP_BYTES = 1 << 42
_USED = b"used"
_NUMBER = struct.Struct("<q")


class StoreFullError(Exception):
    """The file system or the memory that the store lies in has no more room."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is in a store."""

    items: int
    payload_bytes: int
    """What the budget counts."""
    occupied_bytes: int
    """What it takes of the file system: whole pages, and those that are free to be used again."""


class Store:
    """An open store. One for each folder and process: see `opened`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "data.mdb"
        self._fork_lock = threading.Lock()  # no transaction is open while the process forks
        self._unlooked = _LOOK_AGAIN_BYTES
        self._map_bytes = _MAP_BYTES
        _allocate(folder / "lock.mdb", READERS * _READER_BYTES + 8192)
        self._environment = self._open()
        self._environment.reader_check()
        self._inode = self._file.stat().st_ino

    def _open(self) -> Any:
        while True:
            try:
                return lmdb.open(
                    str(self.folder),
                    map_size=self._map_bytes,
                    max_readers=READERS,
                    mode=0o600,
                    sync=False,
                    metasync=False,
                    readahead=False,
                    meminit=False,
                )
            except (lmdb.MemoryError, MemoryError):  # `ulimit -v`
                if self._map_bytes <= 1 << 28:
                    raise
                self._map_bytes //= 2

    def get(self, key: bytes) -> bytes | None:
        """The payload under a key, version included."""
        with self._fork_lock, self._environment.begin() as transaction:
            found: bytes | None = transaction.get(key)
            return found

    def holds(self, key: bytes) -> bool:
        """Whether there is one."""
        with self._fork_lock, self._environment.begin(buffers=True) as transaction:
            return transaction.get(key) is not None

    def payload_bytes(self) -> int:
        """The sum of all payloads."""
        with self._fork_lock, self._environment.begin() as transaction:
            return _used(transaction)

    def put(self, items: Sequence[tuple[bytes, Bytes]], budget_bytes: int, evict: Sequence[bytes] = ()) -> int:
        """Keep items that fit, in their order; how many are kept. What is evicted goes first, older versions too.

        Raises StoreFullError when the budget would allow more than memory does.
        """
        self._look_for_room(sum(len(payload) for _, payload in items))
        kept = 0
        try:
            with self._fork_lock, self._environment.begin(write=True) as transaction:
                used = before = _used(transaction)
                for key in evict:
                    used -= _delete_versions(transaction, key[:KEY_BYTES], None)
                for key, payload in items:
                    used -= _delete_versions(transaction, key[:KEY_BYTES], key)
                    if used + len(payload) <= budget_bytes and transaction.put(key, payload, overwrite=False):
                        used += len(payload)
                        kept += 1
                if used != before or kept:
                    transaction.put(_USED, _NUMBER.pack(used))
        except (lmdb.DiskError, lmdb.MapFullError, lmdb.MemoryError) as error:
            raise StoreFullError(f"{self.folder} has no room left ({error})") from error
        except lmdb.Error as error:
            raise OSError(f"{self.folder} cannot be written: {error}") from error
        return kept

    def _look_for_room(self, size: int) -> None:
        place = os.statvfs(self.folder)
        if place.f_bavail * place.f_frsize < size + (size >> 4) + 65536:
            raise StoreFullError(f"the file system of {self.folder} is full")
        self._unlooked += size
        if self._unlooked >= _LOOK_AGAIN_BYTES:
            if headroom_bytes() < RESERVE_BYTES + size:
                raise StoreFullError("little memory is left to this process: the cache takes no more")
            self._unlooked = 0

    def delete(self, keys: Sequence[bytes]) -> None:
        """Forget items, whatever their versions."""
        self.put([], 0, evict=keys)

    def is_there(self) -> bool:
        """Whether the folder still has the file that is open here."""
        try:
            return self._file.stat().st_ino == self._inode
        except OSError:
            return False

    def stats(self) -> StoreStats:
        """What is in it."""
        used = self.payload_bytes()
        entries = self._environment.stat()["entries"]
        occupied = self._file.stat().st_blocks * 512
        return StoreStats(max(0, entries - 1), used, occupied)

    def close(self) -> None:
        """Close it in this process."""
        self._environment.close()


def _allocate(path: Path, size: int) -> None:
    """LMDB maps this file and writes to it: a full file system is an error here, and the end of the process there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _used(transaction: Any) -> int:
    found = transaction.get(_USED)
    return 0 if found is None else int(_NUMBER.unpack(bytes(found))[0])


def _delete_versions(transaction: Any, name: bytes, but: bytes | None) -> int:
    """Delete what is kept under a name, except for one version; how many bytes that frees."""
    freed = 0
    with transaction.cursor() as cursor:
        found = cursor.set_range(name)
        while found and cursor.key()[:KEY_BYTES] == name:
            if cursor.key() == but:
                found = cursor.next()
                continue
            freed += len(cursor.value())
            found = cursor.delete()
    return freed


def check_installed() -> None:
    """Say what is missing, if so."""
    if lmdb is None:
        raise ConfigError("a cache needs LMDB: pip install 'stoker[cache]'")


_stores: dict[Path, Store] = {}
_lock = threading.RLock()


def opened(folder: Path) -> Store:
    """The store in a folder, opened once in each process."""
    with _lock:
        store = _stores.get(folder)
        if store is None or not store.is_there():
            if store is not None:
                store.close()
            store = _stores[folder] = Store(folder)
        return store


def close(folder: Path) -> None:
    """Close a store in this process, if it is open."""
    with _lock:
        store = _stores.pop(folder, None)
        if store is not None:
            store.close()


@contextlib.contextmanager
def visiting(folder: Path) -> Iterator[Store]:
    """A store for a look: it stays open only if it was."""
    with _lock:
        was_open = folder in _stores
        try:
            yield opened(folder)
        finally:
            if not was_open:
                close(folder)


def _before_fork() -> None:
    _lock.acquire()
    for store in _stores.values():
        store._fork_lock.acquire()


def _after_fork_in_parent() -> None:
    for store in _stores.values():
        store._fork_lock.release()
    _lock.release()


def _after_fork_in_child() -> None:
    """What was inherited is the parent's; LMDB opens a folder once in a process, so it is closed here first."""
    for store in _stores.values():
        store.close()
    _stores.clear()
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
