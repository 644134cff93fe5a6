"""Signals that tell a run to end."""

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any


class Signals:
    """Notes some signals from now on. The handlers that were there before are called, too.

    Signals belong to the main thread: in another one this hears nothing.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.are_heard = False
        """Whether one of the signals has come."""
        self._owner = os.getpid()
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                self._previous[number] = signal.signal(number, self._hear)

    def _hear(self, number: int, frame: Any) -> None:
        previous = self._previous.get(number)
        if os.getpid() != self._owner:  # in a forked child, act as without us
            _put_back(number, previous)
            os.kill(os.getpid(), number)
            return
        self.are_heard = True
        if callable(previous):
            previous(number, frame)

    def take_over(self) -> None:
        """Stop calling the earlier handlers, even after `close`."""
        self._previous.clear()

    def close(self) -> None:
        """Put the earlier handlers back."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._hear:
                _put_back(number, previous)
        self._previous = {}


def _put_back(number: int, previous: Any) -> None:
    signal.signal(number, previous if previous is not None else signal.SIG_DFL)
