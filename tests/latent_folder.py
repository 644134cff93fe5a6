"""A folder whose files take a time to read, where that is permitted: root and /dev/fuse.

A process of its own answers the kernel's questions on a flat folder, from files elsewhere. Each read waits first; reads of
several threads wait side by side, as with storage behind a network. The time can be changed while it is in use, for all
files or for those whose names begin alike. Nothing stays in the page cache from one `open` to the next.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 28, 29,
)  # fmt: skip
_ACCESS, _INTERRUPT, _BATCH_FORGET = 34, 36, 42
_HEAD = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_THREADS = 32
_VALID_S = 3600
_GROUPS = 4

_libc = ctypes.CDLL(None, use_errno=True)


class Latent:
    """The folder, and how long its reads take."""

    def __init__(self, path: Path, shared: mmap.mmap) -> None:
        self.path = path
        self._shared = shared

    def set(self, seconds: float, group: int = 0) -> None:
        """From now on, reads of the files whose names begin with this digit (0: all others) take so long."""
        struct.pack_into("<d", self._shared, 8 * group, seconds)

    def reads(self) -> int:
        """How many reads there were, as far as threads did not count at the same moment."""
        return int(struct.unpack_from("<Q", self._shared, 64)[0])


@contextlib.contextmanager
def latent_folder(source: Path, seconds: float) -> Iterator[Latent | None]:
    """A folder with the files of another one, read slowly; None where it cannot be had."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        yield None
        return
    path = Path(tempfile.mkdtemp(prefix="latent-", dir="/var/tmp"))
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read=131072"
    if _libc.mount(b"stoker-test", os.fsencode(path), b"fuse", 0, options.encode()):
        os.close(device)
        path.rmdir()
        yield None
        return
    shared = mmap.mmap(-1, 4096)
    latent = Latent(path, shared)
    for group in range(_GROUPS):
        latent.set(seconds, group)
    child = os.fork()
    if not child:
        try:
            _Answers(device, source, shared).serve()
        finally:
            os._exit(0)
    os.close(device)
    try:
        yield latent
    finally:
        _libc.umount2(os.fsencode(path), 2)  # MNT_DETACH
        os.waitpid(child, 0)
        path.rmdir()


class _Answers:
    """What the serving process says."""

    def __init__(self, device: int, source: Path, shared: mmap.mmap) -> None:
        self.device, self.shared = device, shared
        self.names = sorted(entry.name for entry in os.scandir(source) if entry.is_file())
        self.numbers = {name: number for number, name in enumerate(self.names, 2)}
        self.files = [os.open(source / name, os.O_RDONLY) for name in self.names]
        self.statuses = [os.fstat(file) for file in self.files]

    def serve(self) -> None:
        threads = [threading.Thread(target=self._loop, daemon=True) for _ in range(_THREADS - 1)]
        for thread in threads:
            thread.start()
        self._loop()

    def _loop(self) -> None:
        while True:
            try:
                asked = os.read(self.device, 1 << 18)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # unmounted
            if not asked:
                return
            _, kind, unique, node, *_ = _HEAD.unpack_from(asked)
            if kind in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            failed = 0
            try:
                answer = self._answer(kind, node, asked[_HEAD.size :])
            except OSError as error:
                answer, failed = b"", error.errno or errno.EIO
            with contextlib.suppress(OSError):
                os.write(self.device, _ANSWER.pack(_ANSWER.size + len(answer), -failed, unique) + answer)

    def _answer(self, kind: int, node: int, body: bytes) -> bytes:
        if kind == _INIT:
            _, minor, ahead, flags = struct.unpack_from("<IIII", body)
            return struct.pack("<IIIIHHIIHH32x", 7, min(minor, 31), ahead, flags & 1, 64, 48, 131072, 1, 0, 0)
        if kind == _LOOKUP:
            number = self.numbers.get(os.fsdecode(body.rstrip(b"\0")))
            if number is None:
                raise OSError(errno.ENOENT, "")
            return struct.pack("<QQQQII", number, 0, _VALID_S, _VALID_S, 0, 0) + self._attributes(number)
        if kind == _GETATTR:
            return struct.pack("<QII", _VALID_S, 0, 0) + self._attributes(node)
        if kind in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if kind == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            self._wait(self.names[node - 2])
            return os.pread(self.files[node - 2], size, offset)
        if kind == _READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._listing(offset, size)
        if kind == _STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if kind in (_FLUSH, _RELEASE, _RELEASEDIR, _ACCESS):
            return b""
        raise OSError(errno.ENOSYS, "")

    def _wait(self, name: str) -> None:
        group = int(name[0]) if name[0] in "123" else 0
        struct.pack_into("<Q", self.shared, 64, struct.unpack_from("<Q", self.shared, 64)[0] + 1)
        time.sleep(struct.unpack_from("<d", self.shared, 8 * group)[0])

    def _attributes(self, node: int) -> bytes:
        if node == 1:
            return _ATTRIBUTES.pack(1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2, 0, 0, 0, 4096, 0)
        found = self.statuses[node - 2]
        seconds, rest = divmod(found.st_mtime_ns, 10**9)
        times = seconds, seconds, seconds, rest, rest, rest
        return _ATTRIBUTES.pack(node, found.st_size, found.st_blocks, *times, stat.S_IFREG | 0o644, 1, 0, 0, 0, 4096, 0)

    def _listing(self, offset: int, size: int) -> bytes:
        listing = b""
        for number, name in enumerate(self.names[offset:], offset + 1):
            encoded = os.fsencode(name)
            entry = struct.pack("<QQII", number + 1, number, len(encoded), 8) + encoded
            entry += bytes(-len(entry) % 8)
            if len(listing) + len(entry) > size:
                break
            listing += entry
        return listing
