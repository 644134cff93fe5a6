"""A folder that Python alone sees, as one process has it: found out when it is first asked for, served through the cache.

`stoker run` lists what is below the address, and leaves the listing in memory without a name, open in its own process,
which becomes the script. So all processes of the run find it, and it is gone with the script.
"""

import contextlib
import errno
import fcntl
import os
import pickle
import stat
import threading
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.host import forks

if TYPE_CHECKING:  # what a process never asks for it does not load
    from stoker.memory import Bytes
    from stoker.mount.serving import Served

NOT_TOLD, _TOLD = b"\0", b"\1"
_DEVICES_FROM = 0x5704 << 32
_FOLDERS_FROM = 1 << 40


class Within:
    """One folder, by what `stoker run` says of it."""

    def __init__(self, mount: dict[str, Any]) -> None:
        self.folder: str = mount["folder"]
        self._device = _DEVICES_FROM + zlib.crc32(os.fsencode(self.folder))
        self._names = {self.folder, os.path.realpath(self.folder)}
        self._mount = mount
        self._known: Served | None = None
        self._making = threading.RLock()
        # A thread that is just importing what serves the folder would leave modules in the child that nobody completes.
        forks.register(forks.Stage.THREADS, before=self._hold, after_in_parent=self._let_go, after_in_child=self._let_go)

    def _hold(self) -> None:
        self._making.acquire()

    def _let_go(self) -> None:
        self._making.release()

    def place(self, path: str) -> str | None:
        """An absolute path as it is within the folder, whose own is "/"; None for paths elsewhere."""
        for name in self._names:
            if path.startswith(name) and path[len(name) : len(name) + 1] in ("", "/"):
                return path[len(name) :] or "/"
        return None

    def _served(self) -> "Served":
        if self._known is None:
            with self._making:
                if self._known is None:
                    self._known = self._make()
        return self._known

    def _make(self) -> "Served":
        import stoker.cache.opened  # noqa: F401 # what those need who were given the bytes
        from stoker.cache.cached import Cache
        from stoker.mount.serving import Served

        mount = self._mount
        try:
            with open(mount["listing"], "rb") as file:
                file.seek(1)
                found = pickle.load(file)  # of the run that started this process
        except OSError as error:
            raise OSError(errno.ENOTCONN, f"the run that has {self.folder} has ended") from error
        cache = Cache(found.source.name, mount["cache"], mount["cache_dir"], disk=mount["cache_disk"])
        return Served(found, cache, ready=lambda: None, may_tell=self._may_tell)

    def _may_tell(self) -> bool:
        """Whether no process of the run has printed an error of this folder. The first byte of the listing says so."""
        with contextlib.suppress(OSError), open(self._mount["listing"], "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            has_told = file.read(1) == _TOLD
            file.seek(0)
            file.write(_TOLD)
            return not has_told
        return True

    def status(self, place: str, named: Any) -> os.stat_result:
        """What `os.stat` says."""
        served = self._served()
        try:
            found = served.getattr(place)
        except OSError:
            raise self._missing(place, named) from None
        number = served.number(place)
        inode = _FOLDERS_FROM + zlib.crc32(place.encode("utf-8", "surrogateescape")) if number is None else number + 1
        size = found.get("st_size", 0)
        ten = (found["st_mode"], inode, self._device, found["st_nlink"], found["st_uid"], found["st_gid"], size, 0, 0, 0)
        nanoseconds = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), 0)
        return os.stat_result(ten, {**nanoseconds, "st_blksize": 4096, "st_blocks": -(-size // 512)})

    def _missing(self, place: str, named: Any) -> OSError:
        above = place
        while (above := os.path.dirname(above)) != "/":
            if self._served().number(above) is not None:
                return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), named)
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), named)

    def listing(self, place: str, named: Any) -> Sequence[str]:
        """What is in a folder, sorted."""
        if not stat.S_ISDIR(self.status(place, named).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), named)
        return self._served().readdir(place, 0)[2:]

    def content(self, place: str, named: Any) -> "Bytes":
        """All bytes of a file."""
        if stat.S_ISDIR(self.status(place, named).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), named)
        return self._served().fetch(place)

    def number(self, place: str) -> int | None:
        """The number of a file; None for folders, and for what is not there."""
        return self._served().number(place)

    def has(self, place: str) -> bool:
        """Whether there is such a file or folder."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return bool(self.status(place, place))
        return False
