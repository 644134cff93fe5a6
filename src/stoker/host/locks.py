"""Locks of files. The kernel frees them when their holder dies, so nobody has to be declared dead.

A lock belongs to an open file. Threads that share a descriptor both get it, so they need a lock of their own, or a
descriptor each (`alone`). A forked child shares the open file, and would keep the lock when its parent is killed. So files
that are opened here are closed in forked children. A finalizer may run at any line, even while its own thread holds the
lock that it needs; it then waits until the lock is free (`when_outside`).
"""

import contextlib
import fcntl
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.host import forks

_TELL_AFTER_S = 10.0


class _Here(threading.local):
    """Whether a thread is within locks, and which finalizers wait for its end."""

    def __init__(self) -> None:
        self.depth = 0
        self.later: list[Callable[[], None]] = []


_here = _Here()


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Within this, a thread holds locks or is about to take them. Finalizers that need locks wait until the end."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        while _here.later and not _here.depth:
            _here.later.pop(0)()


def when_outside(act: Callable[[], None]) -> None:
    """Call a function that takes locks: now, or as soon as this thread holds none."""
    if _here.depth:
        _here.later.append(act)
    else:
        act()


_open: set[int] = set()
"""Descriptors that locks are taken with. A forked child would share the lock, and keep it when its parent is killed."""


def open_lock(path: Path, flags: int) -> int:
    """Open a file to lock it."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _open.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Close a file that `open_lock` opened, which frees its lock."""
    _open.discard(descriptor)
    os.close(descriptor)


def _after_fork_in_child() -> None:
    _here.__init__()  # type: ignore[misc]
    while _open:
        os.close(_open.pop())


forks.register(forks.Stage.LOCKS, after_in_child=_after_fork_in_child)


def take(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Take the lock of a file if it is free. Returns whether it was."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def alone(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[None]:
    """Hold the lock of a file, after waiting for it as long as needed. Several threads may do so, too."""
    descriptor = open_lock(path, flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # another program that is being started has it open, too
        close_lock(descriptor)


@contextlib.contextmanager
def locked(descriptor: int, path: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of a file. Wait, and warn with the holder's name after a while; or raise BlockingIOError at once."""
    try:
        if waits:
            _lock(descriptor, path)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also when an interrupt comes with the lock


def _lock(descriptor: int, path: Path) -> None:
    began = told = time.monotonic()
    pause_s = 2e-5
    while True:
        if take(descriptor):
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2e-3)
        if time.monotonic() - told > _TELL_AFTER_S:
            told = time.monotonic()
            warnings.warn(
                f"waiting for {told - began:.0f} s for {path}, which is locked by {holder_of(descriptor)}. It is "
                "stopped, perhaps: end it, or let it go on.",
                stacklevel=5,
            )


def holder_of(descriptor: int) -> str:
    """Who holds the lock of a file, in words."""
    inode = os.fstat(descriptor).st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and any(part.endswith(f":{inode}") for part in fields):
            return f"process {fields[fields.index('WRITE') + 1]}" if "WRITE" in fields else "another process"
    return "another process"
