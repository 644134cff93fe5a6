"""Which files samples were seen to open: the logs of workers (`cache/notes`), as the keeper reads them.

Loaders of the same cache, kind of dataset and length have one `Opens`: the ranks of a job see other samples in every
epoch, and each profits from what the others have noted. There may be a million samples, so only the place of each line is
kept, and the line is read when it is needed. A script may make many loaders, and a process has few descriptors: of those
that have gone only a few logs are kept.
"""

import itertools
import os
import threading

import numpy as np

from stoker.cache.notes import MOST_SAMPLES
from stoker.memory import Memory

_PIECE = 1 << 20
"""So much of a log is looked at in one go: that takes some milliseconds."""
_LINE = 4096
_PLACE_BITS = 40
_MOST_LEFT = 8
"""So many logs of loaders that have gone are kept. What older ones said is forgotten, and noted again."""


class Opens:
    """What was recorded of some samples."""

    def __init__(self, samples: int) -> None:
        if not 0 < samples <= MOST_SAMPLES:
            raise ValueError(f"{samples} samples")
        self._places = np.full(samples, -1, np.int64)
        """The number of its log, and where its line begins there."""
        self._lock = threading.Lock()
        """Held while logs are read, added or let go."""
        self._logs: dict[int, Memory] = {}
        self._read: dict[int, int] = {}
        self._numbers = itertools.count()
        self._left: list[int] = []
        """Logs whose loaders have gone, in the order in which they did."""

    def add(self, descriptor: int) -> int:
        """Read another log, too. Returns its number."""
        with self._lock:
            number = next(self._numbers)
            self._logs[number], self._read[number] = Memory(0, descriptor=descriptor), 0
            return number

    def let_go(self, number: int) -> None:
        """The loader of a log has gone. The log is kept for as long as no other says what it says."""
        self.learn()
        with self._lock:
            self._left.append(number)
            needed = set(np.unique(self._places >> _PLACE_BITS).tolist())
            unneeded = [log for log in self._left if log not in needed] or self._left[:-_MOST_LEFT]
            for log in unneeded:
                self._places[self._places >> _PLACE_BITS == log] = -1
                self._left.remove(log)
                del self._logs[log], self._read[log]

    def learn(self) -> bool:
        """Read on in all logs. Returns whether there is more."""
        with self._lock:
            return sum(self._learn(number) for number in self._read) > 0

    def _learn(self, number: int) -> bool:
        content = os.pread(self._logs[number].descriptor, _PIECE, self._read[number])
        begin = 0
        while (end := content.find(b"\n", begin)) >= 0:
            index = content[begin:end].partition(b"\0")[0]
            if index.isdigit() and int(index) < len(self._places):
                self._places[int(index)] = number << _PLACE_BITS | (self._read[number] + begin)
            begin = end + 1
        self._read[number] += begin if begin or len(content) < _PIECE else len(content)
        return len(content) == _PIECE

    def knows(self, index: int) -> bool:
        """Whether a sample was recorded."""
        return index < len(self._places) and bool(self._places[index] >= 0)

    def paths(self, index: int) -> list[bytes]:
        """The files of a sample that was recorded."""
        try:
            return self._paths_at(int(self._places[index]))
        except KeyError:  # the log has just been let go
            return []

    def _paths_at(self, place: int) -> list[bytes]:
        log, at = self._logs[place >> _PLACE_BITS], place & ((1 << _PLACE_BITS) - 1)
        line = os.pread(log.descriptor, _LINE, at)
        if b"\n" not in line:
            line = os.pread(log.descriptor, _PIECE, at)
        return line.partition(b"\n")[0].split(b"\0")[1:]
