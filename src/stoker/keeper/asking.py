"""A worker's question to the keeper: an item that is neither in the cache nor staged. The keeper looks on other hosts.

One question and one answer at a time for each thread, with a deadline: after it the worker reads from storage by itself.
An answer is a descriptor of memory without a name, or nothing.
"""

import os
import select
import socket
import threading
from pathlib import Path

from stoker.cache.intercept import Origin
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
        self._local.number += 1
        try:
            content = b"\0".join((key.hex().encode(), os.fsencode(self._folder), os.fsencode(path)))
            messages.send(line, messages.ASKED, 0, self._local.number, content=content)
            return self._answer(line, self._local.number)
        except OSError:
            self._drop()
            return None

    def _line(self) -> socket.socket | None:
        local = self._local
        if local.owner != os.getpid():
            local.line, local.owner, local.not_before = None, os.getpid(), 0.0
        if local.line is None and now() >= local.not_before:
            local.not_before = now() + _AGAIN_S
            local.line = door.find()
        return local.line

    def _answer(self, line: socket.socket, number: int) -> tuple[Bytes, Origin] | None:
        deadline = now() + DEADLINE_S
        waiting = select.poll()
        waiting.register(line, select.POLLIN)
        while (left_s := deadline - now()) > 0 and waiting.poll(left_s * 1000):
            said = messages.receive(line)
            if said is None:
                raise ConnectionResetError("the keeper has gone")
            payload = _read(said.descriptors)
            if said.number == number:  # or else an answer that came too late
                return None if payload is None else (payload, Origin(said.taken))
        return None

    def _drop(self) -> None:
        line, self._local.line = self._local.line, None
        if line is not None:
            line.close()


class _Local(threading.local):
    """The line of one thread."""

    def __init__(self) -> None:
        self.line: socket.socket | None = None
        self.owner = os.getpid()
        self.not_before = 0.0
        self.number = 0


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
    """The keeper's answer to a question. If the worker is gone, or reads nothing, there is none."""
    descriptors = []
    if payload is not None:
        descriptors.append(nameless_file())
        view = memoryview(payload)
        while view:
            view = view[os.write(descriptors[0], view) :]
    try:
        messages.send(line, messages.ANSWERED, 0, number, origin, descriptors=descriptors)
    except OSError:
        pass
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
