"""The process that writes checkpoints. It does not import torch, so it starts in some tens of milliseconds.

It is a fresh interpreter, not a fork: the training process may have threads, a GPU, and gigabytes that a fork would have
to share. It reads snapshots from memory that both have mapped, and is told what to do by lines of JSON on a socket:

    {"save": STEP, "bytes": N, "lengths": [..], "document": .., "kept": false, "prune": STEP, "spared": [..]}
        ->  {"saved": STEP, "seconds": S}   or   {"failed": STEP, "why": ".."}

It holds the directory's lock. If the training process dies, it finishes the save that it has begun, because the snapshot is
whole, and then ends. The next run waits for the lock, and can name the process that holds it.
"""

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from stoker.checkpoint.files import Directory
from stoker.errors import CheckpointError
from stoker.host.locks import close_lock, open_lock, take

LOCK = ".lock"
_LOWEST_PRIORITY = 19


def take_lock(path: Path, owner: int) -> int | None:
    """Hold a directory for as long as this process lives. None if another process does."""
    descriptor = open_lock(path / LOCK, os.O_RDONLY | os.O_CREAT)
    if not take(descriptor):
        close_lock(descriptor)
        return None
    (path / LOCK).write_text(json.dumps({"writer": os.getpid(), "trainer": owner}))
    return descriptor


class Persister:
    """Carries out what the training process asks for."""

    def __init__(self, directory: Directory, memory: int, keep: int) -> None:
        self.directory = directory
        self.memory = memory
        self.keep = keep
        self._swept = False

    def carry_out(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Save one checkpoint. Returns the reply for the training process."""
        began = time.monotonic()
        step = asked["save"]
        try:
            if not self._swept:
                self.directory.sweep()
                self._swept = True
            self._save(asked)
            newest = asked["prune"] if asked["prune"] is not None else step
            self.directory.prune(self.keep, newest, spared=asked["spared"])
        except (OSError, CheckpointError) as error:
            return {"failed": step, "why": str(error), "seconds": time.monotonic() - began}
        return {"saved": step, "seconds": time.monotonic() - began}

    def _save(self, asked: dict[str, Any]) -> None:
        length = asked["bytes"]
        if not length:
            self.directory.save(asked["save"], asked["document"], memoryview(b""), [], kept=asked["kept"])
            return
        content = memoryview(mmap.mmap(self.memory, length, mmap.MAP_SHARED, mmap.PROT_READ))  # closed with its last view
        self.directory.save(asked["save"], asked["document"], content, asked["lengths"], kept=asked["kept"])


def main(directory: str, memory: int, line: int, keep: int, owner: int) -> None:
    """Serve one training process until it closes its end or dies."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # these signals are meant for the training process; this one ends with it
    os.nice(_LOWEST_PRIORITY)  # leave the cores to the training loop
    path = Path(directory)
    channel = socket.socket(fileno=line)
    waits = _Waits(channel, owner)
    try:
        while take_lock(path, owner) is None:
            holder = (path / LOCK).read_text()
            _tell(channel, {"waiting": holder})
            # Waiting in the kernel for the lock would not notice the end of our own training process.
            if waits.is_trainer_gone(50):
                return
    except OSError as error:
        _tell(channel, {"why": str(error)})
        return
    _tell(channel, {"ready": os.getpid()})
    persister = Persister(Directory(path), memory, keep)
    text = b""
    while True:
        waits.until_something_happens()
        part = _receive(channel)
        if not part:
            return  # the training process has closed its end, or is gone
        text += part
        *lines, text = text.split(b"\n")
        for asked in lines:
            _tell(channel, persister.carry_out(json.loads(asked)))


class _Waits:
    """Waits for messages of the training process, and for its end in any way.

    The line alone does not tell of its end: processes that it forked hold the line, too. Where the kernel gives no
    descriptor of a process (a seccomp filter, perhaps), this process checks twice a second whether its parent has changed.
    """

    def __init__(self, channel: socket.socket, owner: int) -> None:
        self._channel, self._owner = channel, owner
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._is_told = False
        with contextlib.suppress(OSError):  # it may be gone already
            self._poll.register(os.pidfd_open(owner), select.POLLIN)
            self._is_told = True

    def is_trainer_gone(self, milliseconds: int) -> bool:
        """Wait a little. Returns at once, and true, if the training process ends or closes the line."""
        events = self._poll.poll(milliseconds)
        if any(descriptor != self._channel.fileno() or _is_closed(self._channel) for descriptor, _ in events):
            return True
        return not self._is_told and os.getppid() != self._owner

    def until_something_happens(self) -> None:
        """Wait until the training process has said something, or is gone."""
        while not self._poll.poll(None if self._is_told else 500) and os.getppid() == self._owner:
            pass


def _is_closed(channel: socket.socket) -> bool:
    try:
        return channel.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def _receive(channel: socket.socket) -> bytes:
    try:
        return channel.recv(1 << 20, socket.MSG_DONTWAIT)
    except (BlockingIOError, ConnectionError):
        return b""  # it was not the line that woke us, so the training process is gone


def _tell(channel: socket.socket, report: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the training process is gone
        channel.sendall(json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:6]))
