"""Anonymous shared memory: sparse, large, and gone with its last user.

A `Memory` is one descriptor of a file that has no name (`memfd_create`). It is made far longer than it will ever be
filled: only touched pages cost memory, so everything that needs room has an offset of its own from the start and
nothing is ever moved. Each process maps the ranges that it uses as `Mapping`s. No file system bounds it (most containers
give /dev/shm 64 MB), and a crash leaves nothing behind. If it grows too much, the kernel's OOM killer comes: ask
`host.headroom` before new pages are touched.

Where `memfd_create` is refused (a seccomp filter, perhaps), the file without a name lies in /dev/shm, and is bound by that.
When /dev/shm is full, the kernel kills a process that touches a new page: `reserve` the pages before.
"""

import ctypes
import errno
import functools
import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ResourceError

ByteArray = NDArray[np.uint8]
Bytes = bytes | bytearray | memoryview

PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc_locked = ctypes.PyDLL(None, use_errno=True)  # calls keep the interpreter lock: no other thread runs Python meanwhile
_libc.mmap.restype = _libc_locked.mremap.restype = ctypes.c_void_p
_libc_locked.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc_locked.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MREMAP_TO_FIXED_PLACE = 1 | 2
_PUNCH_HOLE_KEEP_SIZE = 2 | 1
_MADV_POPULATE_WRITE = 23
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_FAILED = ctypes.c_void_p(-1).value
_BOUNDED_BY = "/dev/shm"


def keep_freed(limit_bytes: int = 64 << 20) -> None:
    """Let this process keep so much memory that it has freed, instead of giving it back to the kernel at once.

    New pages cost several times as much as copying the bytes that go into them. A worker frees all samples of a batch
    at once; LMDB takes memory for all that a transaction writes, and frees it at the end: this makes `put` some three
    times as fast. Not for the training process.
    """
    if not hasattr(_libc, "mallopt"):
        return  # another C library
    most = 32 << 20  # what the C library accepts
    for option, value in (
        (_M_TRIM_THRESHOLD, limit_bytes),
        (_M_TOP_PAD, 1 << 20),
        (_M_MMAP_THRESHOLD, min(limit_bytes, most)),
    ):
        _libc.mallopt(option, value)


class _File:
    """A descriptor that is closed with its last user. Batches may be dropped in any thread."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing, close: Callable[[int], None] = os.close) -> None:
        # Other objects of the same cycle may be finalized later, and use this one.
        descriptor, self.descriptor = self.descriptor, -1
        if not ending():  # at exit half of Python is gone, and the kernel closes it
            close(descriptor)


def nameless_file() -> int:
    """A descriptor of memory that has no name. Raises ResourceError where there is none."""
    try:
        return os.open(_BOUNDED_BY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600) if is_bounded() else _memfd()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ResourceError(
            f"shared memory without a name cannot be had here, neither by memfd_create nor in {_BOUNDED_BY} "
            f"({error.strerror}): allow memfd_create in the seccomp profile of the container, use num_workers=0, or set "
            "STOKER_DISABLE=1"
        ) from error


def _memfd() -> int:
    return os.memfd_create("stoker", os.MFD_CLOEXEC)


@functools.cache
def is_bounded() -> bool:
    """Whether memory without a name lies in /dev/shm, because the kernel refuses other."""
    try:
        os.close(_memfd())
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return False


class Memory:
    """A sparse anonymous file of `length` bytes. Travels to child processes of any start method."""

    def __init__(self, length: int, *, descriptor: int | None = None) -> None:
        self.length = length
        if descriptor is not None:
            self._file: _File | None = _File(descriptor)
            return
        self._file = file = _File(nameless_file())
        os.ftruncate(file.descriptor, length)

    @property
    def descriptor(self) -> int:
        """The descriptor, for a child process that maps the memory, too. -1 when closed."""
        file = self._file
        return -1 if file is None else file.descriptor

    def map(self, offset: int, length: int) -> "Mapping":
        """Make a range visible in this process."""
        file = self._file  # held meanwhile
        return Mapping(-1 if file is None else file.descriptor, offset, length)

    def reserve(self, offset: int, length: int) -> None:
        """Take the pages of a range that is about to be touched. Raises ResourceError if /dev/shm has no room for it."""
        file = self._file  # held meanwhile
        if file is None or length <= 0 or not is_bounded():
            return
        try:
            os.posix_fallocate(file.descriptor, offset, length)
        except OSError as error:
            raise ResourceError(
                f"{_BOUNDED_BY} has no room for {length:,} bytes of a batch ({error.strerror}): make it larger "
                "(`docker run --shm-size`), allow memfd_create in the seccomp profile of the container, or lower "
                "batch_size, num_workers or prefetch_factor"
            ) from error

    def discard(self, offset: int, length: int, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give the pages of a range back to the system, unless closed. They read as zeros from then on, everywhere."""
        file = self._file  # held meanwhile: another thread may close, and the number be another file's
        if file is None or file.descriptor < 0 or ending():  # at exit half of Python is gone, and the kernel frees all
            return
        if _libc.fallocate(file.descriptor, _PUNCH_HOLE_KEEP_SIZE, offset, length):
            raise _last_error("could not give shared memory back")

    def close(self) -> None:
        """Close this process's descriptor; ranges that are mapped stay valid."""
        self._file = None

    def __reduce__(self) -> tuple[Callable[..., "Memory"], tuple[Any, ...]]:
        return _arrive, (self.length, DupFd(self.descriptor))


def _arrive(length: int, duplicate: Any) -> Memory:
    return Memory(length, descriptor=duplicate.detach())


class Flag:
    """An event between processes: one shared byte.

    multiprocessing's event has a lock, which stays locked for ever if a process is killed or suspended while it holds it.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory(PAGE)
        self._memory.reserve(0, PAGE)
        self._bytes = self._memory.map(0, PAGE).buffer

    def set(self) -> None:
        """Set the flag for all processes."""
        self._bytes[0] = 1

    def is_set(self) -> bool:
        """Whether any process has set the flag."""
        return self._bytes[0] != 0

    def __reduce__(self) -> tuple[Callable[[Memory], "Flag"], tuple[Memory]]:
        return Flag, (self._memory,)


class PrivateMemory:
    """Replaces a Memory where nothing is shared: every mapped range is new, and gone with its mapping."""

    def map(self, offset: int, length: int) -> "Mapping":
        """New memory."""
        return Mapping(None, offset, length)

    def reserve(self, offset: int, length: int) -> None:
        """Do nothing: it is not bound by a file system."""

    def discard(self, offset: int, length: int) -> None:
        """Do nothing: a range keeps no pages after its mapping is gone."""


class Mapping:
    """A range of a Memory in this process's address space. It is unmapped when nothing refers to it any more.

    The range belongs to an anonymous `mmap.mmap`, over which the Memory is mapped. So a mapping needs no descriptor, which
    `ulimit -n` would count. And the range goes with the last array over it: the garbage collector cannot unmap it while
    other objects of a cycle still use the memory.
    """

    __slots__ = ("address", "buffer", "length")

    def __init__(self, descriptor: int | None, offset: int, length: int) -> None:
        self.buffer = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.buffer))
        self.length = length
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if descriptor is not None and _libc.mmap(self.address, length, _READ_WRITE, flags, descriptor, offset) == _FAILED:
            raise _last_error(f"could not map {length:,} bytes of shared memory")

    def view(self, kind: type[ByteArray] = np.ndarray) -> ByteArray:
        """All bytes, as an array that keeps the mapping."""
        return np.ndarray.__new__(kind, (self.length,), np.uint8, self.buffer)

    def populate(self, start: int, end: int) -> None:
        """Take the pages of a range from the system in one go, which costs less than one by one as they are touched."""
        start = start // PAGE * PAGE
        _libc.madvise(self.address + start, end - start, _MADV_POPULATE_WRITE)  # kernels before 5.14 refuse: no harm

    def make_private(self, length: int) -> None:
        """Put a private copy of the first `length` bytes where they stand: addresses and contents stay as they are."""
        length = -(-length // PAGE) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        copy = _libc.mmap(None, length, _READ_WRITE, flags, -1, 0)
        if copy == _FAILED:
            raise _last_error(f"could not copy {length:,} bytes of a batch that is kept across a fork")
        _libc_locked.memcpy(copy, self.address, length)
        if _libc_locked.mremap(copy, length, length, _MREMAP_TO_FIXED_PLACE, self.address) == _FAILED:
            error = _last_error("could not move a batch that is kept across a fork")
            _libc.munmap(copy, length)
            raise error


def _last_error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
