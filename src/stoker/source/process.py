"""What a source keeps for one process only: never pickled, and made anew after a fork.

A lock that another thread held at the time of a fork would stay locked for ever in the child, and a descriptor that parent
and child share has one read-ahead state for both.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_OPEN = 64


class PerProcess(Generic[T]):
    """Something that each process makes when it first asks for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """This process's own object, made at the first call."""
        process = os.getpid()
        made = self._made.get(process)
        if made is None:
            made = self._made.setdefault(process, self._make())
            for other in list(self._made):  # a list, because other threads do the same
                if other != process:
                    self._made.pop(other, None)
        return made

    def __reduce__(self) -> tuple[type["PerProcess[T]"], tuple[Callable[[], T]]]:
        return type(self), (self._make,)


class Descriptor:
    """An open file that is closed with its last user."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class Descriptors:
    """The files that were read last, open; at most so many that no usual limit is reached."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Descriptor] = OrderedDict()

    def get(self, path: str) -> Descriptor:
        """A file open for reading. It stays open as long as the answer is held, even if others push it out."""
        with self._lock:
            if found := self._open.get(path):
                self._open.move_to_end(path)
                return found
        opened = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        with self._lock:
            kept = self._open.setdefault(path, opened)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return kept

    def forget(self, path: str) -> None:
        """Have a file opened anew next time."""
        with self._lock:
            self._open.pop(path, None)
