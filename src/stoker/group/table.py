"""A small state that unrelated processes share. One process at a time changes it, whole or not at all; others can wait.

    0     what this is
    64    which of the two halves holds
    128   a counter for each thing that is waited for
    4096  two halves, each a length and marshalled values

A change is written to the half that does not hold, and then one number makes that half hold. So a process that is killed
in between has changed nothing. The lock is the kernel's (`flock`), which frees it when its holder dies. Waiting is the
kernel's (a futex), and ends at once when a process announces a change. Only the owner may open these files.
"""

import contextlib
import ctypes
import marshal
import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError, ResourceError
from stoker.host.locks import close_lock, inside, locked, open_lock
from stoker.memory import Mapping

_MAGIC = b"stoker group 3\n"
_HOLDS_AT, _COUNTERS_AT, _HALVES_AT = 64, 128, 4096
_HALF_BYTES = 256 << 10
TABLE_BYTES = _HALVES_AT + 2 * _HALF_BYTES
_FUTEX = {"x86_64": 202, "ppc64le": 221, "s390x": 238}.get(platform.machine(), 98)
_WAIT, _WAKE = 0, 1
_EVERYBODY = (1 << 31) - 1
_GLANCES = 100
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Table:
    """A table in this process. `of` makes an object of its values; `values` of that object undoes it."""

    def __init__(self, path: Path, of: Callable[[list[Any]], Any]) -> None:
        self.path = path
        self._of = of
        self._descriptor = open_lock(path, os.O_RDWR)
        self._owner = os.getpid()
        self._thread_lock = threading.Lock()  # two threads on one descriptor would both get the kernel's lock
        try:
            if os.pread(self._descriptor, len(_MAGIC), 0) != _MAGIC or os.fstat(self._descriptor).st_size != TABLE_BYTES:
                raise ConfigError(f"{path} was written by another version of stoker")
            # A mapping keeps its open file, and a lock on that, in forked children too. So this one is never locked.
            mapped = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
            try:
                self._memory = Mapping(mapped, 0, TABLE_BYTES).buffer
            finally:
                os.close(mapped)
        except BaseException:
            self.close()
            raise
        self._holds = memoryview(self._memory)[_HOLDS_AT : _HOLDS_AT + 8].cast("Q")
        self._counters = memoryview(self._memory)[_COUNTERS_AT : _COUNTERS_AT + 64].cast("I")
        self._address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._memory))

    @staticmethod
    def create(path: Path, values: list[Any]) -> None:
        """Make a table in a folder that no other process knows yet."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, TABLE_BYTES)  # a full tmpfs is an error here, and a fatal signal later
            content = marshal.dumps(values)
            os.pwrite(descriptor, len(content).to_bytes(8, "little") + content, _HALVES_AT)
            os.pwrite(descriptor, _MAGIC, 0)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def look(self) -> Iterator[Any]:
        """Lock the table and give what it holds."""
        with inside(), self._thread_lock, locked(self._descriptor, self.path):
            yield self._load()

    @contextlib.contextmanager
    def change(self) -> Iterator[Any]:
        """Lock the table and give what it holds, to be changed. If the body ends without an error, the change is kept.

        Then the processes that wait for a counter in the object's `to_wake` are woken.
        """
        with inside():
            with self._thread_lock, locked(self._descriptor, self.path):
                state = self._load()
                yield state
                self._store(state.values())
                for counter in state.to_wake:
                    self._counters[counter] = (self._counters[counter] + 1) & 0xFFFFFFFF
            for counter in state.to_wake:
                self._futex(counter, _WAKE, _EVERYBODY, None)

    def ticket(self, counter: int) -> int:
        """The value that `wait` compares with. Take it before or while you look at the table."""
        return int(self._counters[counter])

    def wait(self, counter: int, ticket: int, longest_s: float) -> None:
        """Wait until a change is announced after the ticket was taken, or for so long at most."""
        self._futex(counter, _WAIT, ticket, _Timespec(int(longest_s), int(longest_s % 1 * 1e9)))

    def _futex(self, counter: int, operation: int, value: int, timeout: _Timespec | None) -> None:
        address = ctypes.c_void_p(self._address + _COUNTERS_AT + 4 * counter)
        limit = None if timeout is None else ctypes.byref(timeout)
        _libc.syscall(_FUTEX, address, operation, ctypes.c_uint32(value), limit, None, 0)

    def _load(self) -> Any:
        start = _HALVES_AT + (self._holds[0] & 1) * _HALF_BYTES
        length = int.from_bytes(self._memory[start : start + 8], "little")
        return self._of(marshal.loads(memoryview(self._memory)[start + 8 : start + 8 + length]))

    def _store(self, values: list[Any]) -> None:
        content = marshal.dumps(values)
        if len(content) + 8 > _HALF_BYTES:
            raise ResourceError(f"the group at {self.path.parent} has too many members")
        other = 1 - (self._holds[0] & 1)
        start = _HALVES_AT + other * _HALF_BYTES
        self._memory[start : start + 8 + len(content)] = len(content).to_bytes(8, "little") + content
        self._holds[0] = other

    def close(self) -> None:
        """Close it in this process."""
        if self._owner == os.getpid():  # a forked child has closed it already
            with inside(), self._thread_lock:
                descriptor, self._descriptor = self._descriptor, -1
                if descriptor >= 0:
                    close_lock(descriptor)


def glance(table: int) -> list[Any] | None:
    """Read a table without its lock, which a suspended process may hold. None if it changes all the time.

    The half that holds is not written to. If the other half came to hold meanwhile, the reading is repeated.
    """
    if os.pread(table, len(_MAGIC), 0) != _MAGIC:
        return None
    before = None
    for _ in range(_GLANCES):
        held = int.from_bytes(os.pread(table, 8, _HOLDS_AT), "little")
        start = _HALVES_AT + (held & 1) * _HALF_BYTES
        length = int.from_bytes(os.pread(table, 8, start), "little")
        content = os.pread(table, min(length, _HALF_BYTES), start + 8)
        if before == (held, content):
            values: list[Any] = marshal.loads(content)
            return values
        before = held, content
    return None
