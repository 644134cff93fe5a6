"""A folder for this process and all that it starts, in one of two ways.

By FUSE: made visible here, served by a process of its own. Where this process may have mounts of its own (root), nobody
else sees the folder, and it is gone with the last process that does. Elsewhere libfuse mounts it for this user
(fusermount), and the serving process takes it away. Where FUSE cannot be used, for Python alone: `replaced` has it in every
Python of the run.
"""

import ctypes
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoker.errors import ConfigError
from stoker.extras import MOUNT

FUSE, PYTHON = WAYS = ("fuse", "python")
_NEW_MOUNTS = 0x00020000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_ANSWER_BYTES = 1 << 16


class NoFuseError(Exception):
    """FUSE cannot be used here; the words say why."""


class Mounted(NamedTuple):
    """A folder that is there."""

    files: int
    without_fuse: str
    """Why it is there for Python alone; "" where FUSE serves it."""
    for_python: dict[str, Any] | None
    """What the script's processes are told, if it is for Python alone."""


def parse_mount(text: str) -> tuple[str, str]:
    """An address and a folder, from URL=DIR."""
    address, sign, folder = text.rpartition("=")
    if not sign or not address or not folder:
        raise ConfigError(f"--mount is URL=DIR, such as s3://bucket/train=/data, not {text!r}")
    return address, os.path.abspath(folder)


def check_apart(folders: Sequence[str]) -> None:
    """Folders that lie in one another hide each other. Raises ConfigError."""
    for first, second in itertools.combinations(sorted(map(os.path.realpath, folders)), 2):
        if os.path.commonpath([first, second]) == first:
            raise ConfigError(f"nothing can be mounted at {second}: {first} is mounted, too")


def own_mounts() -> bool:
    """Let mounts from now on be seen by this process and what it starts alone. False where that is not permitted."""
    system = ctypes.CDLL(None, use_errno=True)
    if system.unshare(_NEW_MOUNTS):
        return False
    return bool(system.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) == 0)


def mount(what: dict[str, Any], way: str | None) -> Mounted:
    """Let a folder have what is below an address, for as long as this process lives.

    `what` has `address`, `folder`, `cache`, `cache_dir` and `cache_disk`. Without a way it is FUSE, if that can be used.
    Raises ConfigError.
    """
    _check(what["folder"])
    if way == PYTHON:
        return _for_python(what, "--mount-by python")
    try:
        _check_fuse()
        return Mounted(_by_fuse(what), "", None)
    except NoFuseError as trouble:
        if way == FUSE:
            raise ConfigError(f"--mount-by fuse: {trouble}") from trouble
        return _for_python(what, str(trouble))


def _for_python(what: dict[str, Any], why: str) -> Mounted:
    """List what is there, and leave the listing where the script's processes find it: in memory, open in this process."""
    from stoker.cache.cached import Cache
    from stoker.memory import nameless_file
    from stoker.mount.names import listed
    from stoker.mount.within import NOT_TOLD

    found = listed(what["address"])
    Cache(
        found.source.name, what["cache"], what["cache_dir"], disk=what["cache_disk"]
    ).close()  # what cannot be is said now
    listing = nameless_file()
    with open(listing, "wb", closefd=False) as file:
        file.write(NOT_TOLD)
        pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
    os.set_inheritable(listing, True)
    place = f"/proc/{os.getpid()}/fd/{listing}"
    return Mounted(len(found.names), why, {**what, "listing": place})


def _by_fuse(what: dict[str, Any]) -> int:
    reading, writing = os.pipe()
    owner = os.pidfd_open(os.getpid())
    command = [sys.executable, "-m", "stoker.mount", json.dumps(what), str(owner), str(writing)]
    serving = subprocess.Popen(
        command, pass_fds=(owner, writing), stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
    )
    os.close(writing)
    os.close(owner)
    answer = b""
    while more := os.read(reading, _ANSWER_BYTES):  # until it has told, or ended
        answer += more
    os.close(reading)
    kind, _, rest = answer.decode("utf-8", "replace").partition(" ")
    if kind != "files":
        serving.wait()  # the script did not start it, and is not to find it among its children
    if kind == FUSE:
        raise NoFuseError("mounting is not permitted")
    if kind != "files":
        trouble = rest or "the process that serves it has ended"
        raise ConfigError(f"{what['address']} cannot be mounted at {what['folder']}: {trouble}")
    return int(rest)


def _check_fuse() -> None:
    if not MOUNT.is_installed:
        raise NoFuseError(f"{MOUNT.called} is not installed: {MOUNT.command}")
    try:
        import mfusepy  # noqa: F401 # it looks for libfuse
    except OSError as error:
        raise NoFuseError("libfuse is not installed") from error
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NoFuseError(f"/dev/fuse cannot be used: {error.strerror}") from error


def _check(folder: str) -> None:
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise ConfigError(f"the folder {folder} is not empty: what is in it could not be seen below a mount")
    except OSError as error:
        raise ConfigError(f"nothing can be mounted at {folder}: {error.strerror}") from error
