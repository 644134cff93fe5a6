"""The few things that saving does to a file system, in one place, so that a test can record them and stop after any."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """The real file system."""

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Write a new file and wait until it is on the device."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # so that reading the file back reads the device
        finally:
            os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file its name."""
        os.rename(path, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink(missing_ok=True)

    def settle(self, directory: Path) -> None:
        """Wait until all names in a directory are on the device."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
