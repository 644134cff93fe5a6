"""Bytes under keys, shared by all processes of a host, within an exact budget. The one home of LMDB.

A store is a folder with an LMDB environment in it. The same transaction writes items and the sum of all payloads, so the
two agree even after a kill or on a full file system. Nothing is synced: memory does not survive a crash of the host. Every
payload has checksums, which do not count against the budget. Errors of a store are OSErrors; a damaged item raises
ItemDamagedError.
"""

import importlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stoker import checksum
from stoker.cache import pages, walking
from stoker.cache.claims import Claims
from stoker.cache.crash import name_at_crash
from stoker.cache.inspection import NUMBER, USED, WRITER, StoreDamagedError, StoreStats, look_through, occupied_bytes
from stoker.cache.walking import KEY_BYTES
from stoker.extras import CACHE
from stoker.host.headroom import headroom_bytes
from stoker.host.mounts import file_system
from stoker.memory import Bytes
from stoker.sealed import payload_bytes, seal, unseal, unseal_block

lmdb: Any = None
"""Imported with the first store, not before: where Python has no interpreter lock, importing it brings the lock back."""

READERS = 2048
_READER_BYTES = 64
RESERVE_BYTES = 64 << 20
"""Memory that is always left to the training, even if the budget allows more."""
_LOOK_AGAIN_BYTES = 32 << 20
_WRITERS = 16
_MAP_BYTES = 1 << 42
_PAUSE_S = 30.0


class StoreFullError(Exception):
    """The file system or the memory that the store lies in has no more room."""


class StoreBusyError(Exception):
    """Another process has been writing for too long."""


class Store:
    """An open store. One for each folder and process: see `stores`."""

    def __init__(self, folder: Path) -> None:
        _load()
        self.folder = folder
        self.users = 0
        self.lock = threading.RLock()
        """Held within every transaction, so that none is open while the process forks."""
        self._file = folder / "data.mdb"
        self._unlooked = _LOOK_AGAIN_BYTES
        self._headroom = 0
        self._is_memory = file_system(folder) in ("tmpfs", "ramfs")
        self._paused_until = 0.0
        _allocate(folder / "lock.mdb", READERS * _READER_BYTES + 8192)
        self._writing = Claims(folder / "claims")
        if self._file.exists():
            self._check_length()
        self._environment = _opened_environment(folder)
        self._inode = self._file.stat().st_ino
        self._descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        self._length = -1
        name_at_crash(self, folder, ("get", "get_block", "size", "payload_bytes", "_put"))

    def get(self, key: bytes) -> bytes | None:
        """The payload under a key, which includes the version."""
        self._check_file()
        try:
            with self.lock, self._environment.begin(buffers=True) as transaction:
                found = transaction.get(key)
                return None if found is None else unseal(key, found)
        except lmdb.Error as error:
            raise _failure(self.folder, error) from error

    def get_block(self, key: bytes, number: int) -> bytes | None:
        """One block of a payload: bytes from `number * BLOCK_BYTES` on."""
        self._check_file()
        try:
            with self.lock, self._environment.begin(buffers=True) as transaction:
                found = transaction.get(key)
                return None if found is None else unseal_block(key, found, number)
        except lmdb.Error as error:
            raise _failure(self.folder, error) from error

    def size(self, key: bytes) -> int | None:
        """How many bytes there are under a key."""
        self._check_file()
        try:
            with self.lock, self._environment.begin(buffers=True) as transaction:
                found = transaction.get(key)
                return None if found is None else payload_bytes(len(found))
        except lmdb.Error as error:
            raise _failure(self.folder, error) from error

    def payload_bytes(self) -> int:
        """The sum of all payloads."""
        self._check_file()
        try:
            with self.lock, self._environment.begin() as transaction:
                return self._used(transaction)
        except lmdb.Error as error:
            raise _failure(self.folder, error) from error

    def _used(self, transaction: Any) -> int:
        found = transaction.get(USED)
        if found is not None and len(found) != NUMBER.size:
            raise StoreDamagedError(f"the cache in {self.folder} is damaged: it does not say how much is in it")
        return 0 if found is None else int(NUMBER.unpack(found)[0])

    def _check_file(self) -> None:
        """Check that the file was not cut: LMDB maps it, and the kernel kills a process that reads beyond its end."""
        if self._descriptor < 0:
            raise FileNotFoundError(self.folder)
        found = os.fstat(self._descriptor)
        if found.st_nlink == 0:
            raise FileNotFoundError(self.folder)
        if found.st_size != self._length:
            self._check_length()
            self._length = found.st_size

    def _check_length(self) -> None:
        if pages.is_long_enough(self._file):
            return
        is_ours = self._writing.wait(WRITER)  # no process may write meanwhile
        try:
            look_through(self.folder)
        finally:
            if is_ours:
                self._writing.release([WRITER])

    def visit(self, keys: Sequence[bytes], use: Callable[[Sequence[Bytes | None]], None]) -> None:
        """Call `use` once with what lies under keys, as it is: sealed, unchecked, and gone when `use` returns.

        The beginning of a key is enough: other hosts do not know the rest of it.
        """
        self._check_file()
        try:
            with self.lock, self._environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
                use([cursor.value() if cursor.set_range(key) and cursor.key()[: len(key)] == key else None for key in keys])
        except (lmdb.Error, SystemError) as error:
            raise _failure(self.folder, error) from error

    def names(self, after: bytes, limit: int) -> tuple[int, list[bytes]]:
        """Names after a name, in order, at most so many; and a number that changes with the content of the store."""
        self._check_file()
        try:
            with self.lock, self._environment.begin() as transaction:
                return transaction.id(), walking.names_after(transaction, after, limit)
        except (lmdb.Error, SystemError) as error:
            raise _failure(self.folder, error) from error

    def put(
        self,
        items: Sequence[tuple[bytes, Bytes]],
        budget_bytes: int,
        evict: Sequence[bytes] = (),
        *,
        is_sealed: bool = False,
    ) -> int:
        """Keep items that fit, in their order. Returns how many are kept. Evicted items and older versions go first.

        Sealed items, as another host's store has them, are kept as they are. The caller has checked them.

        Any items beyond the budget are removed, too, some thousand at once. A budget of 0 means that no job lives, and
        changes nothing. Raises StoreFullError when there is less memory than the budget allows, and StoreBusyError when
        another process keeps writing.
        """
        if items and not evict:  # removed items leave their pages to new ones
            self._look_for_room(sum(len(payload) for _, payload in items))
        if time.monotonic() < self._paused_until:
            return 0
        self._check_file()
        with self.lock:
            if not self._writing.wait(WRITER):
                self._paused_until = time.monotonic() + _PAUSE_S
                raise StoreBusyError(f"another process has been writing to {self.folder} for long")
            try:
                return self._put(items, budget_bytes, evict, is_sealed)
            finally:
                self._writing.release([WRITER])

    def _put(self, items: Sequence[tuple[bytes, Bytes]], budget_bytes: int, evict: Sequence[bytes], is_sealed: bool) -> int:
        kept = 0
        try:
            with self._environment.begin(write=True) as transaction:
                used = before = self._used(transaction)
                for key in evict:
                    used -= walking.delete_versions(transaction, key[:KEY_BYTES], None)
                if budget_bytes:
                    used -= walking.delete_any(transaction, used - budget_bytes)
                for key, payload in items:
                    used -= walking.delete_versions(transaction, key[:KEY_BYTES], key)
                    size = payload_bytes(len(payload)) if is_sealed else len(payload)
                    if used + size > budget_bytes:
                        continue
                    if transaction.put(key, payload if is_sealed else seal(key, payload), overwrite=False):
                        used += size
                        kept += 1
                if used < 0:
                    raise StoreDamagedError(f"the cache in {self.folder} is damaged: items are longer than it says")
                if used != before or kept:
                    transaction.put(USED, NUMBER.pack(used))
        except (lmdb.DiskError, lmdb.MapFullError, lmdb.MemoryError) as error:
            raise StoreFullError(f"{self.folder} has no room left ({error})") from error
        except (lmdb.Error, SystemError) as error:  # its cursors raise SystemError where a tree is torn
            raise _failure(self.folder, error.__cause__ or error) from error
        return kept

    def _look_for_room(self, size: int) -> None:
        place = os.statvfs(self.folder)
        if place.f_bavail * place.f_frsize < size + (size >> 4) + 65536:
            raise StoreFullError(f"the file system of {self.folder} is full")
        self._unlooked += size
        # Other processes fill memory, too: the less is left, the sooner this is checked again.
        if self._is_memory and self._unlooked >= min(_LOOK_AGAIN_BYTES, self._headroom // _WRITERS):
            self._headroom = headroom_bytes()
            if self._headroom < RESERVE_BYTES + size:
                raise StoreFullError("little memory is left to this process: the cache takes no more")
            self._unlooked = 0

    def shrink(self, budget_bytes: int) -> None:
        """Forget items beyond a budget, and give back their memory. No other process should have this store open.

        A process that has it open loses it, as if it had been removed.
        """
        while (held := self.payload_bytes()) > budget_bytes:
            self.put([], budget_bytes)
            if self.payload_bytes() == held:
                raise StoreBusyError(f"nothing can be removed from {self.folder} now")
        smaller = self.folder / "smaller"
        shutil.rmtree(smaller, ignore_errors=True)
        smaller.mkdir(mode=0o700)
        try:
            with self.lock:
                self._environment.copy(os.fsencode(smaller), compact=True)
            (smaller / "data.mdb").chmod(0o600)
            (self.folder / "lock.mdb").unlink()
            (smaller / "data.mdb").rename(self._file)
        except lmdb.Error as error:
            raise _failure(self.folder, error) from error
        finally:
            shutil.rmtree(smaller, ignore_errors=True)

    def is_there(self) -> bool:
        """Whether the folder still has the file that is open here."""
        try:
            return self._file.stat().st_ino == self._inode
        except OSError:
            return False

    def stats(self) -> StoreStats:
        """What is in the store."""
        used = self.payload_bytes()
        try:
            with self.lock:
                entries = self._environment.stat()["entries"]
        except lmdb.Error as error:
            raise _failure(self.folder, error) from error
        return StoreStats(max(0, entries - 1), used, occupied_bytes(self.folder))

    def close(self) -> None:
        """Close the store in this process."""
        with self.lock:
            self._environment.close()
            self._writing.close()
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)


def _load() -> None:
    global lmdb
    if lmdb is None:
        CACHE.check()
        checksum.load()
        lmdb = importlib.import_module("lmdb")


def _opened_environment(folder: Path) -> Any:
    map_bytes = _MAP_BYTES
    while True:
        try:
            environment = lmdb.open(
                os.fsencode(folder),  # as text it would have to be encodable without escapes
                map_size=map_bytes,
                max_readers=READERS,
                mode=0o600,
                sync=False,
                metasync=False,
                readahead=False,
                meminit=False,
            )
            environment.reader_check()
            return environment
        except (lmdb.MemoryError, MemoryError) as error:  # `ulimit -v`
            if map_bytes <= 1 << 28:
                raise _failure(folder, error) from error
            map_bytes //= 2
        except lmdb.Error as error:
            raise _failure(folder, error) from error


def _failure(folder: Path, error: BaseException) -> OSError:
    return OSError(f"{folder}: {error}")


def _allocate(path: Path, size: int) -> None:
    """Allocate the file's pages. On a full file system this raises; LMDB, which maps the file, would be killed later."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
