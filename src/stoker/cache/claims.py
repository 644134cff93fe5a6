"""One reader for each item: while a process fetches an item for the cache, others wait for it instead of reading it, too.

A claim is a lock on one byte of a file, at the offset that the item's key gives. The kernel lets go of it when its holder
dies, and knows who waits for whom. It is a courtesy, not a promise: whoever has waited long enough (the holder may have
been stopped) reads the item itself.
"""

import contextlib
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PATIENCE_S = 5.0
_FLOCK = struct.Struct("hhqqi")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.005


class Claims:
    """The claims of one process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held: set[int] = set()
        self._lock = threading.RLock()

    def claim(self, key: bytes) -> bool:
        """Try to claim an item. Nothing is waited for."""
        offset = _offset(key)
        with self._lock:  # a lock of the kernel's is the process's, so threads need one of their own
            if offset in self._held or self._descriptor < 0:
                return False
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))
            except (BlockingIOError, PermissionError):
                return False
            self._held.add(offset)
            return True

    def release(self, keys: Sequence[bytes]) -> None:
        """Let go of claims."""
        with self._lock:
            for offset in map(_offset, keys):
                if offset in self._held:
                    self._held.discard(offset)
                    unlock = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0)
                    with contextlib.suppress(OSError):  # closed meanwhile, which lets go of all
                        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, unlock)

    def wait(self, key: bytes) -> bool:
        """Wait until we have the claim. False when its holder took too long."""
        if self.claim(key):
            return True
        deadline = time.monotonic() + PATIENCE_S
        pause = _FIRST_PAUSE_S
        while time.monotonic() < deadline:
            time.sleep(pause)
            if self.claim(key):
                return True
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return False

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Let go of all; in a forked child, of nothing but the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    __del__ = close


def _offset(key: bytes) -> int:
    return int.from_bytes(key[:7], "little")
