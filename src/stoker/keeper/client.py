"""A training process's end of the line to the keeper. It costs some microseconds a message, and never waits.

What cannot be said at once is dropped: the keeper only saves time. Only who comes and who goes is said later then. If the
keeper is gone, another one is started, but not again and again. A forked child has no line: it gets one of its own if it
iterates a loader.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from stoker.host import forks
from stoker.keeper import door, messages
from stoker.meter import now

_AGAIN_S, _LATEST_S = 1.0, 60.0
"""A keeper that is lost is replaced after a second, and later each time."""


class Line:
    """This process's line, for all its loaders."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._socket: socket.socket | None = None
        self._starting: subprocess.Popen[bytes] | None = None
        self._losses = 0
        self._not_before = 0.0
        self._numbers = itertools.count()
        self._guests: dict[int, tuple[dict[str, Any], list[int]]] = {}
        self._unsaid: dict[int, Callable[[socket.socket], None]] = {}
        """What is still to be said of loaders, because the line was full when they came or went."""

    def join(self, document: dict[str, Any], descriptors: list[int]) -> int:
        """Tell the keeper of a loader, whose descriptors stay open until it leaves. Returns the loader's number."""
        number = next(self._numbers)
        self._guests[number] = document, descriptors
        if self._socket is None:
            self._connect()
        else:
            self._say(lambda line: messages.introduce(line, number, document, descriptors), of=number)
        return number

    def queued(self, loader: int, number: int, taken: int, waited_s: float, indices: bytes) -> bool:
        """Tell that a batch is ordered. Returns whether the keeper will know."""
        line = self._socket
        if line is None and (now() < self._not_before or not self._connect() or (line := self._socket) is None):
            return False
        if self._unsaid and not self._catch_up():
            return False
        try:
            messages.send(line, messages.QUEUED, loader, number, taken, waited_s, indices)
        except BlockingIOError:
            return False
        except OSError:
            self._losses += 1
            self._lose()
            return False
        if self._starting is not None and self._starting.poll() is not None:
            self._starting = None
        return True

    def over(self, loader: int, taken: int) -> None:
        """Tell that nothing of a loader is queued any more, and how many works were taken."""
        self._say(lambda line: messages.send(line, messages.OVER, loader, taken=taken))

    def epoch(self, loader: int, number: int) -> None:
        """Tell that an epoch begins whose order is told."""
        self._say(lambda line: messages.send(line, messages.EPOCH, loader, number))

    def met(self, loader: int, own: Sequence[Any] | None, others: Sequence[Sequence[Any]]) -> None:
        """Tell of the hosts that a loader's host has found, each as address and port. Another keeper will know, too."""
        if loader in self._guests:
            document = self._guests[loader][0]
            document |= {"own": own or document["own"], "others": others}
            content = json.dumps({"others": others}).encode()
            self._say(lambda line: messages.send(line, messages.MET, loader, content=content))

    def leave(self, loader: int) -> None:
        """Tell that a loader goes. With the last one the line ends."""
        self._guests.pop(loader, None)
        if self._unsaid.pop(loader, None) is None:  # or else the keeper does not know of it
            self._say(lambda line: messages.send(line, messages.CLOSED, loader), of=loader)
        if not self._guests:
            self.close()

    def _say(self, tell: Callable[[socket.socket], None], of: int | None = None) -> bool:
        """Say something. With `of`, it is said of that loader later if the line is full. False if it is not said now."""
        if self._socket is not None:
            try:
                tell(self._socket)
                return True
            except BlockingIOError:
                if of is not None:
                    self._unsaid[of] = tell
            except OSError:
                self._lose()
        return False

    def _catch_up(self) -> bool:
        """Say what could not be said when loaders came or went. Returns whether all is said."""
        for loader in list(self._unsaid):
            tell = self._unsaid.pop(loader, None)
            if tell is not None and not self._say(tell, of=loader):
                return False
        return True

    def _connect(self) -> bool:
        self._not_before = now() + min(_LATEST_S, _AGAIN_S * 2 ** min(self._losses, 10))
        try:
            self._socket, starting = door.reach()
        except door.NoKeeperError:
            return False
        self._starting = starting
        for number in list(self._guests):  # other threads make loaders meanwhile, and the garbage collector ends them
            if number in self._guests:
                about = number, *self._guests[number]
                self._say(lambda line, it=about: messages.introduce(line, *it), of=number)  # type: ignore[misc]
        return self._socket is not None

    def _lose(self) -> None:
        line, self._socket = self._socket, None
        self._unsaid.clear()
        if line is not None:
            line.close()

    def close(self) -> None:
        """End the line. What was started is waited for: that one ends as soon as the keeper runs."""
        self._lose()
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.wait()

    def forget(self) -> None:
        """In a forked child: the line is the parent's."""
        self._lose()
        if self._starting is not None:
            self._starting.returncode = 0  # it is no child of this process
            self._starting = None


_line: Line | None = None


def line() -> Line:
    """The line of this process."""
    global _line
    if _line is None or _line.owner != os.getpid():
        _line = Line()
    return _line


def _after_fork_in_child() -> None:
    global _line
    if _line is not None:
        with contextlib.suppress(OSError):
            _line.forget()
        _line = None


forks.register(forks.Stage.HOLDINGS, after_in_child=_after_fork_in_child)
