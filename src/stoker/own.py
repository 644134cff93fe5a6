"""Folders of one user alone: where everything that processes of a user find by name lies, caches, groups and records alike.

    /dev/shm/stoker-UID        or, where another user has taken that name, /run/user/UID/stoker

Anybody may make a folder, a file or a link in /dev/shm, under any name. So a folder is opened before it is used, without
following a link, and what is open is looked at: it must be a folder, this user's, and closed to others. Nothing is made
in one that is not. Once the other place is there, all processes of the user go there, whatever becomes of the first.
"""

import contextlib
import os
import pwd
import stat
from pathlib import Path

_TMPFS = Path("/dev/shm")
_RUNTIME = Path("/run/user")


class NotOwnError(PermissionError):
    """A folder is another user's, or open to others; the message says whose it is and what to do."""


def home() -> Path:
    """The folder of this user, whether it is there or not. Raises NotOwnError where there can be none."""
    first, other = _TMPFS / f"stoker-{os.getuid()}", _RUNTIME / str(os.getuid()) / "stoker"
    with contextlib.suppress(OSError):
        check(other)
        return other
    try:
        check(first)
    except FileNotFoundError:
        return first
    except NotOwnError as error:
        try:
            check(other.parent)
        except OSError:
            raise NotOwnError(f"{error}, and there is no {other.parent} to use instead") from None
        return other
    return first


def make_home() -> Path:
    """The folder of this user, made if need be. Raises OSError where there can be none."""
    while True:
        folder = home()
        try:
            make(folder)
            return folder
        except NotOwnError:
            if home() == folder:  # or else somebody has taken its place just now
                raise


def make(folder: Path) -> None:
    """Make a folder of this user alone, or make sure that it is one. The one above it is there. Raises NotOwnError."""
    parent = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder.name, 0o700, dir_fd=parent)
        _check(folder, parent)
    finally:
        os.close(parent)


def check(folder: Path) -> None:
    """Raise NotOwnError unless a folder is this user's alone, FileNotFoundError if it is not there."""
    parent = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(folder, parent)
    finally:
        os.close(parent)


def _check(folder: Path, parent: int) -> None:
    descriptor = os.open(folder.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if found.st_uid != os.getuid():
        raise NotOwnError(f"{folder} belongs to {_name(found.st_uid)}, who or root can remove it")
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise NotOwnError(f"{folder} is not a folder of this user alone: remove it, or what is in it may not be ours")


def _name(user: int) -> str:
    try:
        return f"the user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"the user {user}"
