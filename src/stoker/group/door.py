"""The door of a group on this host: members come and go through it, one at a time.

    HOME/groups/NAME/door            locked by the process that comes or goes; HOME: see `host.folders`
    HOME/groups/NAME/TOKEN/about     what its members have in common; each of them has a lock on it
    HOME/groups/NAME/TOKEN/table     the state of the group; its rules are in `rules`

The loaders of one script, for training and for validation, each have a TOKEN. What a killed member leaves behind is removed
by its workers, or by the next process at the door of any group.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError, ResourceError
from stoker.group.room import StagingRoom
from stoker.group.rules import Group
from stoker.group.staging import LENGTH, GroupAddress, GroupStaging
from stoker.group.state import LAYOUT
from stoker.group.table import TABLE_BYTES, Table
from stoker.host import folders, forks, process
from stoker.host.locks import close_lock, inside, locked, open_lock, take
from stoker.memory import nameless_file
from stoker.units import format_bytes

GROUP_VERSION = f"2.{LAYOUT:08x}"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Differences = Callable[[dict[str, Any]], list[str]]
"""Says in words what keeps a loader from joining a group, given what the group's members have in common."""

_entered: dict[str, set[str]] = {}
"""The tokens that loaders of this process have joined, by the names of groups."""

_at_door = threading.Lock()
"""Held while a thread of this process is at the door of a group."""


def _after_fork_in_child() -> None:
    global _at_door
    _at_door = threading.Lock()  # a thread of the parent may have held it at the fork
    _entered.clear()


forks.register(forks.Stage.LOCKS, after_in_child=_after_fork_in_child)


def check_name(name: object) -> str:
    """Raise if this is not a valid name of a group."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"group must be a name of at most 64 letters, digits, dots, hyphens and underscores, not {name!r}"
        )
    return name


def home() -> Path:
    """The folder of this user's groups."""
    return folders.home() / "groups"


def enter(
    name: str, about: dict[str, Any], differences: Differences, budget_bytes: int, cores: float, label: str
) -> tuple[GroupAddress, dict[str, Any], int]:
    """Join a group, or open one. Returns where it is, what its members have in common, and a lock to close on leaving."""
    try:
        return _enter(name, about, differences, budget_bytes, cores, label)
    except folders.NotOwnError as error:
        raise ResourceError(f"no place for the group {name!r}: {error}") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise no_room(name) from None
        place = folders.home().parent
        if os.access(place, os.W_OK):
            raise
        raise ResourceError(
            f"no place for the group {name!r}: {place} is missing or cannot be written. Mount a tmpfs there"
        ) from None


def no_room(name: str) -> ResourceError:
    """The error for a lack of space for a group. It says what to do."""
    place = folders.home().parent
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    return ResourceError(
        f"no room for the group {name!r} in {place}: it needs {format_bytes(TABLE_BYTES)} and a little more, and "
        f"{format_bytes(free)} are free. `ls {place}` and `stoker cache ls` tell what is there. In containers --shm-size "
        "makes it larger"
    )


def _enter(
    name: str, about: dict[str, Any], differences: Differences, budget_bytes: int, cores: float, label: str
) -> tuple[GroupAddress, dict[str, Any], int]:
    sweep()
    about = {"version": GROUP_VERSION, "namespace": process.namespace(), **about}
    with _door(folders.make_home() / "groups" / name) as folder:
        found: list[tuple[Path, dict[str, Any]]] = []
        for stream in sorted(folder.iterdir()):
            if stream.is_dir():
                theirs = _remove_if_dead(stream)
                if theirs is not None:
                    found.append((stream, theirs))
        entered = _entered.setdefault(name, set())
        misfits = []
        for stream, theirs in found:
            if theirs.get("rank") != about.get("rank"):
                continue  # a group of another rank
            what = _strangers(about, theirs) or differences(theirs)
            if not what:
                try:
                    address, presence = _join(stream, about, label)
                except ResourceError:
                    if _remove_if_dead(stream) is not None:
                        raise
                    continue  # the last member has just gone
                entered.add(stream.name)
                return address, theirs, presence
            if stream.name not in entered:
                misfits.append(what)
        if misfits:
            # Groups that this process has joined belong to its other loaders. This loader should fit one of the rest.
            what = min(misfits, key=len)
            raise ConfigError(f"this loader does not fit the group {name!r}: " + "; ".join(what))
        stream = _open(folder, about, Group(StagingRoom(budget_bytes), cores=cores))
        address, presence = _join(stream, about, label, opens=True)
        entered.add(stream.name)
        return address, about, presence


def _strangers(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    if theirs["version"] != ours["version"]:
        return [f"it was opened by a stoker whose groups have version {theirs['version']}, and this is {ours['version']}"]
    if theirs["namespace"] != ours["namespace"]:
        return ["it was opened in another container: members must see each other's processes"]
    return []


@contextlib.contextmanager
def _door(folder: Path, *, waits: bool = True) -> Iterator[Path]:
    """Make a group's folder and lock its door. If another process has the lock, wait, or raise BlockingIOError."""
    with inside(), _at_door:
        yield from _doors(folder, waits=waits)


def _doors(folder: Path, *, waits: bool) -> Iterator[Path]:
    folders.make(folder.parent.parent, folder.parent)
    path = folder / "door"
    while True:
        try:
            folders.make(folder)
            descriptor = open_lock(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # the last member has just gone, and taken the folder along
        try:
            with locked(descriptor, path, waits=waits):
                try:
                    is_same = os.path.samestat(os.fstat(descriptor), os.stat(path))
                except FileNotFoundError:
                    is_same = False
                if is_same:
                    yield folder
                    return
        finally:
            close_lock(descriptor)


def _open(folder: Path, about: dict[str, Any], group: Group) -> Path:
    """Make a group without members. If this process dies on the way, the next at the door removes what is there."""
    stream = folder / secrets.token_hex(8)
    stream.mkdir(mode=0o700)
    try:
        Table.create(stream / "table", group.values())
        path = stream / "about"
        path.touch(mode=0o600)
        path.write_text(json.dumps(about))
    except BaseException:
        shutil.rmtree(stream, ignore_errors=True)
        raise
    return stream


def _remove_if_dead(stream: Path) -> dict[str, Any] | None:
    """Remove a group whose members are all dead. Else return what its members have in common."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # its opener died while opening
        about: dict[str, Any] = json.loads((stream / "about").read_text())
        is_ours = (about["version"], about["namespace"]) == (GROUP_VERSION, process.namespace())
        if not is_ours:  # its pids or its table mean nothing here
            if _is_locked(stream / "about"):
                return about
        else:
            table = Table(stream / "table", Group.of)
            try:
                with table.change() as group:
                    group.sweep(process.is_alive)
                    if group.members:
                        return about
            finally:
                table.close()
    shutil.rmtree(stream, ignore_errors=True)
    return None


def _is_locked(path: Path) -> bool:
    """Whether a member of any version, in any container, is present."""
    descriptor = open_lock(path, os.O_RDWR)
    try:
        return not take(descriptor)
    finally:
        close_lock(descriptor)


def _join(stream: Path, about: dict[str, Any], label: str, *, opens: bool = False) -> tuple[GroupAddress, int]:
    table = Table(stream / "table", Group.of)
    here = process.own()
    opened: list[Callable[[], None]] = []
    try:
        descriptor = nameless_file() if opens else _open_memory(table)
        opened.append(lambda: os.close(descriptor))
        os.ftruncate(descriptor, LENGTH)
        presence = open_lock(stream / "about", os.O_RDWR)
        opened.append(lambda: close_lock(presence))
        fcntl.flock(presence, fcntl.LOCK_SH)
        with table.change() as group:
            # The ranks of a job have a group each. They read the same epoch only if every rank counts epochs itself.
            counts = about.get("world", 1) > 1
            number = group.join(here, label, descriptor, time.monotonic(), counts=counts)
    except BaseException:
        for close in opened:
            close()
        raise
    finally:
        table.close()
    return GroupAddress(str(stream), number, here[0], descriptor), presence


def _open_memory(table: Table) -> int:
    with table.look() as group:
        members = list(group.members.values())
    failure: OSError | None = None
    for member in members:
        try:
            return os.open(f"/proc/{member.process[0]}/fd/{member.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            failure = error
    raise ResourceError(f"the group's memory cannot be opened through any of its members: {failure}")


def leave(staging: GroupStaging) -> None:
    """Remove a member from its group: this process's own, or a dead one. The last member's group is removed, too."""
    folder = staging.folder
    with staging.table.change() as group:  # first, because opening the door may fail: too many open files, say
        group.leave(staging.member, process.is_alive)
    with _door(folder.parent) as whole:
        with staging.table.change() as group:
            group.sweep(process.is_alive)
        if not group.members:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(one.is_dir() for one in whole.iterdir()):
            shutil.rmtree(whole, ignore_errors=True)


def sweep() -> None:
    """Remove groups whose members are all dead, unless a process is at their door."""
    groups = home()
    if not groups.is_dir():
        return
    for one in list(groups.iterdir()):
        with contextlib.suppress(OSError), _door(one, waits=False) as folder:
            for stream in list(folder.iterdir()):
                if stream.is_dir():
                    _remove_if_dead(stream)
            if not any(stream.is_dir() for stream in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
