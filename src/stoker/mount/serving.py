"""The folder as FUSE asks for it: what is there was listed once; what is read comes whole through a cache.

A file that has changed since it was listed is an error, as the size that the kernel knows is not its own any more. libfuse
calls from several threads.
"""

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stoker.cache.cached import Cache
from stoker.cache.walking import KEY_BYTES
from stoker.errors import SampleNotFound
from stoker.memory import Bytes
from stoker.mount.names import Listed
from stoker.mount.tree import Tree

_FOLDER = stat.S_IFDIR | 0o555
_FILE = stat.S_IFREG | 0o444
_WRITING = os.O_WRONLY | os.O_RDWR


class _Handle:
    """An open file. It is fetched when it is first read from."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.payload: Bytes | None = None


class _One:
    """A request for one file, by the key that it had when it was listed."""

    def __init__(self, source: Any, number: int, key: bytes, size: int) -> None:
        self._source, self._number, self._size = source, number, size
        self.keys = [key]
        self.has_changed = False
        """Whether what was read is of another version."""

    def sizes(self, positions: list[int]) -> Sequence[int]:
        return [self._size]

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        found: Sequence[Bytes] = self._source.read([self._number])
        self.has_changed = self._source.version(self._number) != self.keys[0][KEY_BYTES:]
        return found

    def is_settled(self, position: int) -> bool:
        is_settled: Callable[[int], bool] | None = getattr(self._source, "is_settled", None)
        return not self.has_changed and (is_settled is None or is_settled(self._number))

    def kept(self, positions: list[int]) -> None:
        release = getattr(self._source, "release", None)
        if release is not None:
            release([self._number])


class Served:
    """The operations of the file system, under the names that FUSE has for them."""

    use_ns = True

    def __init__(
        self, listed: Listed, cache: Cache, ready: Callable[[], None], may_tell: Callable[[], bool] = lambda: True
    ) -> None:
        """`may_tell` says whether no other process has printed an error of this folder."""
        self._may_tell = may_tell
        self._listed = listed
        self._source: Any = listed.source
        self._tree = Tree(listed.names)
        self._cache = cache
        self._ready = ready
        self._sizes = listed.sizes
        self._keys: dict[int, bytes] = {}
        self._open: dict[int, _Handle] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._has_told = False
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}

    def __len__(self) -> int:
        return len(self._tree)

    def number(self, path: str) -> int | None:
        """The number of a file; None for folders, and for what is not there."""
        return self._tree.number(path)

    def init(self, path: str) -> None:
        """The folder is there now."""
        self._ready()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Kind and size of a file or folder."""
        number = self._tree.number(path)
        if number is not None:
            return {"st_mode": _FILE, "st_nlink": 1, "st_size": self._sizes[number], **self._owner}
        if self._tree.listing(path) is None:
            raise OSError(errno.ENOENT, path)
        return {"st_mode": _FOLDER, "st_nlink": 2, **self._owner}

    def readdir(self, path: str, fh: int) -> list[str]:
        """What is in a folder."""
        inside = self._tree.listing(path)
        if inside is None:
            raise OSError(errno.ENOENT, path)
        return [".", "..", *inside]

    def open(self, path: str, flags: int) -> int:
        """Open a file for reading."""
        number = self._tree.number(path)
        if number is None:
            raise OSError(errno.ENOENT, path)
        if flags & _WRITING:
            raise OSError(errno.EROFS, path)
        with self._lock:
            self._next += 1
            self._open[self._next] = _Handle()
            return self._next

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Bytes of an open file."""
        handle = self._open[fh]
        with handle.lock:
            if handle.payload is None:
                handle.payload = self.fetch(path)
        return bytes(handle.payload[offset : offset + size])

    def fetch(self, path: str) -> Bytes:
        """All bytes of a file."""
        number = self._tree.number(path)
        if number is None:
            raise OSError(errno.ENOENT, path)
        try:
            key = self._keys.get(number)
            if key is None:
                key = self._keys[number] = self._source.key(number)[:KEY_BYTES] + self._listed.version(number)
            size = self._sizes[number]
            request = _One(self._source, number, key, size)
            payload = self._cache.fetch(request)[0]
            _, _, _, _, _, _, fault, *_ = self._cache.tally.take()
            if fault:
                self._told(errno.EIO, f"{fault}; what the cache does not give is read from {self._source.name}")
        except SampleNotFound as error:
            raise self._told(error.errno or errno.ENOENT, error.strerror or str(error)) from error
        except OSError as error:
            raise self._told(errno.EIO, error.strerror or str(error)) from error
        if len(payload) != size or request.has_changed:
            raise self._told(errno.ESTALE, f"{path} has changed since the folder was mounted: start the run again")
        return payload

    def _told(self, code: int, why: str) -> OSError:
        """An error for the reader. The first one is printed, as the reader sees no words."""
        if not self._has_told:
            self._has_told = True
            if self._may_tell():
                print(f"stoker: {why}", file=sys.stderr, flush=True)
        return OSError(code, why)

    def release(self, path: str, fh: int) -> int:
        """Close a file."""
        with self._lock:
            self._open.pop(fh, None)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """A file system without any room."""
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": sum(self._sizes) // 4096, "f_bavail": 0, "f_namemax": 255}
