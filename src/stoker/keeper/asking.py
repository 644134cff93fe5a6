"""A worker's question to the keeper: an item that is neither in the cache nor staged. The keeper looks on other hosts.

One question and one answer at a time for each thread, with a deadline: after it the worker reads from storage by itself,
and asks nothing more before that answer has come. An answer is a descriptor of memory without a name, or nothing.
"""

import contextlib
import os
import select
import socket
import threading
from pathlib import Path

from stoker.cache.asked import Origin
from stoker.errors import ResourceError
from stoker.keeper import door, messages
from stoker.memory import Bytes, nameless_file
from stoker.meter import now

DEADLINE_S = 1.5
_AGAIN_S = 1.0


class Asking:
    """Asks for items of one cache. It is sent to workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local = _Local()

    def __reduce__(self) -> tuple[type["Asking"], tuple[Path]]:
        return Asking, (self._folder,)

    def __call__(self, key: bytes, path: str) -> tuple[Bytes, Origin] | None:
        """An item, and where it came from; None if the keeper does not give it in time."""
        line = self._line()
        if line is None:
            return None
        try:
            if not self._has_answered(line):
                return None
            self._local.number += 1
            content = b"\0".join((key.hex().encode(), os.fsencode(self._folder), os.fsencode(path)))
            messages.send(line, messages.ASKED, 0, self._local.number, content=content)
            return self._answer(line, self._local.number)
        except OSError:
            self._drop()
            return None

    def _line(self) -> "_Line | None":
        local = self._local
        if local.owner != os.getpid():
            local.line, local.owner, local.not_before, local.is_unanswered = None, os.getpid(), 0.0, False
        if local.line is None and now() >= local.not_before:
            local.not_before = now() + _AGAIN_S
            found = door.find()
            local.line = None if found is None else _Line(fileno=found.detach())
        return local.line

    def _answer(self, line: socket.socket, number: int) -> tuple[Bytes, Origin] | None:
        if not _is_readable(line, DEADLINE_S):
            self._local.is_unanswered = True
            return None
        said = messages.receive(line)
        if said is None or said.number != number:
            raise ConnectionResetError("the keeper has gone")
        payload = _read(said.descriptors)
        return None if payload is None else (payload, Origin(said.taken))

    def _has_answered(self, line: socket.socket) -> bool:
        """Whether the last question was answered, perhaps too late. A keeper that is suspended costs one deadline only."""
        if self._local.is_unanswered and _is_readable(line, 0):
            self._local.is_unanswered = False
            self._answer(line, self._local.number)
        return not self._local.is_unanswered

    def _drop(self) -> None:
        line, self._local.line, self._local.is_unanswered = self._local.line, None, False
        if line is not None:
            line.close()


class _Line(socket.socket):
    """Closed when nobody needs it: with its thread, or with the loader."""

    __del__ = socket.socket.close


class _Local(threading.local):
    """The line of one thread."""

    def __init__(self) -> None:
        self.line: _Line | None = None
        self.owner = os.getpid()
        self.not_before = 0.0
        self.number = 0
        self.is_unanswered = False


def _is_readable(line: socket.socket, within_s: float) -> bool:
    waiting = select.poll()
    waiting.register(line, select.POLLIN)
    return bool(waiting.poll(within_s * 1000))


def _read(descriptors: tuple[int, ...]) -> Bytes | None:
    if not descriptors:
        return None
    descriptor, *others = descriptors
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        for one in (descriptor, *others):
            os.close(one)


def answer(line: socket.socket, number: int, payload: Bytes | None, origin: Origin) -> None:
    """The keeper's answer to a question. If there is no memory for the item, the answer is that it is not given."""
    descriptors: list[int] = []
    try:
        if payload is not None:
            with contextlib.suppress(OSError, ResourceError):
                descriptors.append(_written(payload))
        messages.send(line, messages.ANSWERED, 0, number, origin, descriptors=descriptors)
    except OSError:
        pass  # the worker is gone
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _written(payload: Bytes) -> int:
    descriptor = nameless_file()
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(descriptor, view) :]
        return descriptor
    except OSError:
        os.close(descriptor)
        raise
