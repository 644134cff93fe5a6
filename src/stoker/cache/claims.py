"""One reader for each item: while a process fetches an item for the cache, others wait for it instead of reading it, too.

A claim is a lock on one byte of a file, at the offset that the item's key gives. The kernel frees it when its holder dies,
and detects circles of waiting. A claim only saves reads: a process that has waited too long (the holder may be suspended)
reads the item itself.
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
        """Try to claim an item, without waiting."""
        offset = _offset(key)
        with self._lock:  # the kernel's lock belongs to the process, so threads need one of their own
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
                    with contextlib.suppress(OSError):  # closed meanwhile, which released all claims
                        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, unlock)

    def wait(self, key: bytes, is_vain: Callable[[], bool] | None = None) -> bool:
        """Wait for a claim. False when its holder took too long, or when `is_vain` says that waiting is in vain."""
        if self.claim(key):
            return True
        deadline = time.monotonic() + PATIENCE_S
        pause = _FIRST_PAUSE_S
        while time.monotonic() < deadline:
            time.sleep(pause)
            if is_vain is not None and is_vain():
                return False
            if self.claim(key):
                return True
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return False

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Release all claims. In a forked child only the descriptor is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    __del__ = close


def _offset(key: bytes) -> int:
    return int.from_bytes(key[:7], "little")
