"""Folders of one user alone, and files in them that live as long as the processes that made them.

Everything that processes of a user find by name lies in one folder, caches, groups and records alike:

    /dev/shm/stoker-UID        or, where that cannot be had (another user has taken the name, or there is no /dev/shm that
                               this user may write), /run/user/UID/stoker

Anybody may make a folder, a file or a link in /dev/shm, under any name. So a folder is opened before it is used, without
following a link, and the open file is checked: it must be a folder, this user's, and closed to others. Nothing is made in
any other folder. Once the second place exists, all processes of the user use it, even if the first becomes free.

An entry is a file that its maker holds locked. Nobody sees it before it is locked. If its lock is free its maker has gone,
and the next process that looks removes it.
"""

import contextlib
import fcntl
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.host.locks import close_lock, open_lock, take

_TMPFS = Path("/dev/shm")
_RUNTIME = Path("/run/user")
_TRIES = 100


class NotOwnError(PermissionError):
    """A folder belongs to another user, or is open to others. The message says to whom, and what to do."""


def home() -> Path:
    """The path of this user's folder, which need not exist yet. Raises NotOwnError if this user cannot have one."""
    first, other = _TMPFS / f"stoker-{os.getuid()}", _RUNTIME / str(os.getuid()) / "stoker"
    with contextlib.suppress(OSError):
        check(other)
        return other
    try:
        check(first)
    except FileNotFoundError:
        if not os.access(_TMPFS, os.W_OK):
            with contextlib.suppress(OSError):
                check(other.parent)
                return other
        return first
    except NotOwnError as error:
        try:
            check(other.parent)
        except OSError:
            raise NotOwnError(f"{error}, and there is no {other.parent} to use instead") from None
        return other
    return first


def make_home() -> Path:
    """The path of this user's folder, which is made if need be. Raises OSError if this user cannot have one."""
    while True:
        folder = home()
        try:
            make(folder)
            return folder
        except NotOwnError:
            if home() == folder:  # or else somebody has taken its place just now
                raise


def make(*folders: Path) -> None:
    """Make folders for this user alone, one after the other, or check those that exist. Their parent exists.

    Raises NotOwnError if one is not this user's alone.
    """
    for folder in folders:
        with _above(folder) as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=parent)
            _check(folder, parent)


def check(*folders: Path) -> None:
    """Raise NotOwnError unless folders are this user's alone, FileNotFoundError if one is not there."""
    for folder in folders:
        with _above(folder) as parent:
            _check(folder, parent)


@contextlib.contextmanager
def _above(folder: Path) -> Iterator[int]:
    parent = os.open(folder.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield parent
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
    if not stat.S_ISDIR(found.st_mode):
        raise NotOwnError(f"{folder} is not a folder of this user alone: remove it")
    if found.st_mode & 0o077:
        look = ", after a look whether others have put something into it" if found.st_mode & 0o022 else ""
        raise NotOwnError(f"{folder} is not a folder of this user alone: chmod 700 {shlex.quote(str(folder))}{look}")


def _name(user: int) -> str:
    try:
        return f"the user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"the user {user}"


def add_entry(folder: Path, fill: Callable[[int], object]) -> tuple[Path, int]:
    """Make a file with content. It is locked until `close_lock` closes its descriptor, or this process ends.

    Before it is locked it looks like the entry of a dead process. If it is removed just then, it is made again.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return _add_entry(folder, fill)
    raise FileNotFoundError(folder)


def _add_entry(folder: Path, fill: Callable[[int], object]) -> tuple[Path, int]:
    token = secrets.token_hex(8)
    path, unseen = folder / token, folder / f".{token}"
    descriptor = open_lock(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # a process that looks may hold it for a moment
        fill(descriptor)
        unseen.rename(path)  # nobody sees it before it is locked
    except BaseException:
        close_lock(descriptor)
        for left in (unseen, path):
            left.unlink(missing_ok=True)
        raise
    return path, descriptor


def entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """The entries of living processes, each open for reading until the next is asked for. Others are removed."""
    for name in sorted(os.listdir(folder)):
        path, is_seen = folder / name, not name.startswith(".")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # it has just gone
        try:
            if take(descriptor, fcntl.LOCK_SH):
                with contextlib.suppress(OSError):
                    path.unlink()
            elif is_seen:  # or else it is just being made
                yield path, descriptor
        finally:
            os.close(descriptor)
