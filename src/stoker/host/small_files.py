"""Small files of ours, read and written without `open`, which may go through a cache."""

import os
from pathlib import Path

_MOST_BYTES = 1 << 20


def read_small(path: Path) -> bytes:
    """The content of a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


def write_small(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, in the place of what was there. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
