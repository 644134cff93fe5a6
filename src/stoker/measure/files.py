"""Files of a dataset, cold or warm on purpose, and how fast they can be read. Without root, and files need not be ours.

The kernel drops its copy of a file when told that it is not needed (`posix_fadvise`), unless another process holds it.
`cachestat` tells whether it did, for files that are ours. For others a read that may not wait (`RWF_NOWAIT`) tells. Each
file gets one such read: it makes the kernel fetch what is missing, and a second one might find it. `mincore` says that all
pages of such files are there. It is used only in an overlay, where the other two find nothing.
"""

import contextlib
import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from stoker.host.mounts import file_system

_CACHESTAT = 451  # the same on every architecture, since Linux 6.5
_PAGE = os.sysconf("SC_PAGE_SIZE")
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC


def cool(paths: Iterable[str], *, sync: bool = False) -> None:
    """Let the kernel drop files from memory. Pages written just now stay, unless `sync` writes them to storage first."""

    def forget(descriptor: int) -> None:
        if sync:
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    for path in paths:
        _on(path, forget)


def warm(paths: Iterable[str]) -> int:
    """Read files once; how many bytes they have."""
    return sum(len(_read(path)) for path in paths)


def resident(paths: Sequence[str]) -> float:
    """The part of some files that is in memory."""
    parts: list[float] = []
    # The pages of a file in an overlay belong to the file below, and `cachestat` finds none.
    is_layered = bool(paths) and file_system(Path(paths[0])) == "overlay"

    def ask(descriptor: int) -> None:
        if size := os.fstat(descriptor).st_size:
            pages = _pages_below(descriptor, size) if is_layered else _pages_in_memory(descriptor)
            parts.append(_probe(descriptor, size) if pages is None else min(1.0, pages * _PAGE / size))

    for path in paths:
        _on(path, ask)
    return sum(parts) / len(parts) if parts else 0.0


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Pages(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writing", "evicted", "evicted_lately")]


_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p


def _pages_in_memory(descriptor: int) -> int | None:
    """The pages of a file in memory; None where the kernel does not tell: an old kernel, or another user's file."""
    pages = _Pages()
    failed = _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(_Range(0, 0)), ctypes.byref(pages), 0)
    return None if failed else pages.cached


def _pages_below(descriptor: int, size: int) -> int | None:
    """The pages in memory of a file in an overlay: they belong to the file below."""
    mapped = _libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
    address = ctypes.c_void_p(mapped)
    if address.value == ctypes.c_void_p(-1).value:
        return None
    flags = (ctypes.c_ubyte * -(-size // _PAGE))()
    try:
        return None if _libc.mincore(address, ctypes.c_size_t(size), flags) else sum(flag & 1 for flag in flags)
    finally:
        _libc.munmap(address, ctypes.c_size_t(size))


def _probe(descriptor: int, size: int) -> float:
    try:
        return float(os.preadv(descriptor, [bytearray(1)], random.randrange(size), os.RWF_NOWAIT) > 0)
    except BlockingIOError:
        return 0.0
    except OSError:  # the file system cannot tell: count it as there, so that nobody trusts it to be cold
        return 1.0


def sizes(paths: Iterable[str]) -> int:
    """How many bytes files have."""
    total = 0
    for path in paths:
        try:
            total += os.stat(path).st_size
        except OSError:
            continue
    return total


def read_rate(samples: Iterable[Callable[[], object]], readers: int, limit_s: float) -> float:
    """Samples per second when so many threads read one after the other, in the time allowed."""
    ends = read_ends(samples, readers, limit_s)
    return len(ends) / ends[-1] if ends else 0.0


def read_ends(samples: Iterable[Callable[[], object]], readers: int, limit_s: float) -> list[float]:
    """When each read ended, in seconds from the first, if so many threads read one after the other in the time allowed.

    Only as long as all of them read: the last ones alone would look slow.
    """
    ahead = iter(samples)
    lock = threading.Lock()
    ends: list[list[float]] = [[] for _ in range(readers)]
    failures: list[BaseException] = []
    begun = threading.Barrier(readers + 1)
    deadline = [0.0]

    def read(own: list[float]) -> None:
        begun.wait()
        try:
            while time.perf_counter() < deadline[0]:
                with lock:
                    sample = next(ahead, None)
                if sample is None:
                    return
                sample()
                own.append(time.perf_counter())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(own,), daemon=True) for own in ends]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    deadline[0] = began + limit_s
    begun.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if not all(ends):
        return []
    together = min(own[-1] for own in ends)
    return sorted(end - began for own in ends for end in own if end <= together)


def reader_of(paths: Sequence[str]) -> Callable[[], object]:
    """A function that reads the files of a sample."""
    return lambda: [_read(path) for path in paths]


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _on(path: str, act: Callable[[int], None]) -> None:
    try:
        descriptor = os.open(path, _READ_ONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            act(descriptor)
    finally:
        os.close(descriptor)
