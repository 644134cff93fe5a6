"""Finding the keeper of this user on this host, starting it, and leaving it.

    HOME/keepers.lock      held while a keeper is looked for, started or ends; see `host.folders` for HOME
    HOME/keepers/TOKEN     what a keeper says of itself, locked for as long as it lives

A keeper listens on a socket without a file, whose name is in its entry. So a killed keeper leaves an entry of some
kilobytes, which the next process that looks removes. Who starts a keeper makes the socket and the entry, and hands them
over: it can connect at once, and what it says waits in the kernel until the keeper runs.

Those who come hold the lock, and the last that leaves ends the keeper, which holds the lock as it does: nobody comes to
one that is about to end. Paths mean something in one mount namespace only, so every such namespace has a keeper of its
own. Nobody needs a keeper, and nobody waits for one: where none can be had, all goes on without.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.host import folders
from stoker.host.interpreters import words_and_environment
from stoker.host.locks import close_lock, open_lock, take
from stoker.host.sockets import other_end

STATE_BYTES = 64 << 10
"""Room in an entry for what a keeper says of itself."""
_HEAD = struct.Struct("<QQ")  # the number of the write, and its length; two places follow, as in a loader's record
_WAITING = 64
_PATIENCE_S = 0.5
"""Others hold the lock for some milliseconds. One that was suspended meanwhile is not waited for."""


class NoKeeperError(Exception):
    """There is no keeper, and none can be started now. The message says why."""


def folder() -> Path:
    """Where keepers have their entries; it need not exist."""
    return folders.home() / "keepers"


def reach() -> "tuple[socket.socket, subprocess.Popen[bytes] | None]":
    """A line to this host's keeper, which is started if there is none; and what starts it, to be waited for some time."""
    try:
        home = folders.make_home()
        place = home / "keepers"
        folders.make(place)
        with locked(home):
            found = _connected(place)
            return (found, None) if found is not None else _start(place)
    except OSError as error:
        raise NoKeeperError(str(error)) from error


def find() -> socket.socket | None:
    """A line to this host's keeper, if there is one."""
    with contextlib.suppress(OSError):
        home = folders.home()
        with locked(home):
            return _connected(home / "keepers")
    return None


@contextlib.contextmanager
def locked(home: Path, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Hold the lock of all who come and leave. Raises BlockingIOError if another one keeps it."""
    descriptor = open_lock(home / "keepers.lock", os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + patience_s
        while not take(descriptor):
            if time.monotonic() >= deadline:
                raise BlockingIOError(f"another process holds {home / 'keepers.lock'}")
            time.sleep(0.001)
        yield
    finally:
        close_lock(descriptor)


def _connected(place: Path) -> socket.socket | None:
    for _, descriptor in folders.entries(place):
        state = read_state(descriptor)
        if state is None or state.get("mounts") != _mounts():
            continue
        line = _line()
        try:
            line.connect(_address(state["token"]))
            if other_end(line)[1] == os.getuid():
                return line
        except OSError:  # it has just been killed, or too many come at once
            pass
        line.close()
    return None


def _start(place: Path) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    token = secrets.token_hex(8)
    listening, line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), _line()
    entry, path = -1, None
    try:
        listening.bind(_address(token))
        listening.listen(_WAITING)
        line.connect(_address(token))
        path, entry = folders.add_entry(place, lambda made: _fill(made, token))
        return line, _spawn(path, entry, listening.fileno())
    except OSError:
        line.close()
        if path is not None:
            path.unlink(missing_ok=True)
        raise
    finally:
        listening.close()
        if entry >= 0:
            close_lock(entry)  # the keeper has a duplicate, and so the lock


def _spawn(path: Path, entry: int, listening: int) -> "subprocess.Popen[bytes]":
    words, environment = words_and_environment("stoker.keeper")
    return subprocess.Popen(
        [*words, str(path), str(entry), str(listening)],
        env=environment,
        pass_fds=[entry, listening],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _line() -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setblocking(False)
    return line


def _address(token: str) -> str:
    return f"\0stoker-keeper-{os.getuid()}-{token}"


def _mounts() -> int:
    try:
        return os.stat("/proc/self/ns/mnt").st_ino
    except OSError:
        return 0


def _fill(descriptor: int, token: str) -> None:
    os.posix_fallocate(descriptor, 0, _HEAD.size + 2 * STATE_BYTES)  # a full tmpfs is an error here
    write_state(descriptor, 1, {"token": token, "mounts": _mounts()})


def write_state(descriptor: int, number: int, state: dict[str, Any]) -> None:
    """Write what a keeper says of itself; numbers count up. One that is killed meanwhile leaves the one before."""
    content = json.dumps(state).encode()
    if len(content) <= STATE_BYTES:
        os.pwrite(descriptor, content, _HEAD.size + number % 2 * STATE_BYTES)
        os.pwrite(descriptor, _HEAD.pack(number, len(content)), 0)


def read_state(descriptor: int) -> dict[str, Any] | None:
    """What a keeper says of itself; None if it is written just now, or makes no sense."""
    for _ in range(10):
        head = os.pread(descriptor, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return None
        number, length = _HEAD.unpack(head)
        content = os.pread(descriptor, min(length, STATE_BYTES), _HEAD.size + number % 2 * STATE_BYTES)
        if os.pread(descriptor, _HEAD.size, 0) == head:
            with contextlib.suppress(ValueError):
                state = json.loads(content)
                return state if isinstance(state, dict) and isinstance(state.get("token"), str) else None
    return None
