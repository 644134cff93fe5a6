"""A folder for this process and all that it starts: made visible here, served by a process of its own.

Where this process may have mounts of its own (root), nobody else sees the folder, and it is gone with the last process that
does. Elsewhere libfuse mounts it for this user (fusermount), and the serving process takes it away.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from stoker.errors import ConfigError
from stoker.extras import MOUNT

_NEW_MOUNTS = 0x00020000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_ANSWER_BYTES = 1 << 16


def parse_mount(text: str) -> tuple[str, str]:
    """An address and a folder, from URL=DIR."""
    address, sign, folder = text.rpartition("=")
    if not sign or not address or not folder:
        raise ConfigError(f"--mount is URL=DIR, such as s3://bucket/train=/data, not {text!r}")
    return address, os.path.abspath(folder)


def own_mounts() -> bool:
    """Let mounts from now on be seen by this process and what it starts alone. False where that is not permitted."""
    system = ctypes.CDLL(None, use_errno=True)
    if system.unshare(_NEW_MOUNTS):
        return False
    return bool(system.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) == 0)


def mount(address: str, folder: str, cache_bytes: int, cache_dir: str | None, cache_disk: str | None) -> int:
    """Let a folder have what is below an address, for as long as this process lives. Returns how many files there are.

    Raises ConfigError where that cannot be.
    """
    MOUNT.check()
    _check(folder)
    what = {"address": address, "folder": folder, "cache": cache_bytes, "cache_dir": cache_dir, "cache_disk": cache_disk}
    reading, writing = os.pipe()
    owner = os.pidfd_open(os.getpid())
    command = [sys.executable, "-m", "stoker.mount", json.dumps(what), str(owner), str(writing)]
    subprocess.Popen(command, pass_fds=(owner, writing), stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    os.close(writing)
    os.close(owner)
    answer = b""
    while more := os.read(reading, _ANSWER_BYTES):  # until it has told, or ended
        answer += more
    os.close(reading)
    kind, _, rest = answer.decode("utf-8", "replace").partition(" ")
    if kind != "files":
        raise ConfigError(f"{address} cannot be mounted at {folder}: {rest or 'the process that serves it has ended'}")
    return int(rest)


def _check(folder: str) -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise ConfigError(
            f"--mount needs /dev/fuse, which cannot be used here ({error.strerror}): load the module fuse, or give the "
            "container the device"
        ) from error
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise ConfigError(f"the folder {folder} is not empty: what is in it could not be seen below a mount")
    except OSError as error:
        raise ConfigError(f"nothing can be mounted at {folder}: {error.strerror}") from error
