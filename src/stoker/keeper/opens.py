"""Which files samples were seen to open: the logs of workers (`cache/notes`), as the keeper reads them.

Loaders of the same cache, kind of dataset and length have one `Opens`: the ranks of a job see other samples in every
epoch, and each profits from what the others have noted. There may be a million samples, so only the place of each line is
kept, and the line is read when it is needed.
"""

import os

import numpy as np

from stoker.cache.notes import MOST_SAMPLES
from stoker.memory import Memory

_PIECE = 1 << 20
"""So much of a log is looked at in one go: that takes some milliseconds."""
_LINE = 4096
_PLACE_BITS = 40


class Opens:
    """What was recorded of some samples."""

    def __init__(self, samples: int) -> None:
        if not 0 < samples <= MOST_SAMPLES:
            raise ValueError(f"{samples} samples")
        self._places = np.full(samples, -1, np.int64)
        """The number of its log, and where its line begins there."""
        self._logs: list[Memory] = []
        self._read: list[int] = []

    def add(self, descriptor: int) -> None:
        """Read another log, too."""
        self._logs.append(Memory(0, descriptor=descriptor))
        self._read.append(0)

    def learn(self) -> bool:
        """Read on in all logs. Returns whether there is more."""
        is_more = False
        for number, log in enumerate(self._logs):
            content = os.pread(log.descriptor, _PIECE, self._read[number])
            begin = 0
            while (end := content.find(b"\n", begin)) >= 0:
                index = content[begin:end].partition(b"\0")[0]
                if index.isdigit() and int(index) < len(self._places):
                    self._places[int(index)] = number << _PLACE_BITS | (self._read[number] + begin)
                begin = end + 1
            self._read[number] += begin if begin or len(content) < _PIECE else len(content)
            is_more = is_more or len(content) == _PIECE
        return is_more

    def knows(self, index: int) -> bool:
        """Whether a sample was recorded."""
        return index < len(self._places) and bool(self._places[index] >= 0)

    def paths(self, index: int) -> list[bytes]:
        """The files of a sample that was recorded."""
        place = int(self._places[index])
        log, at = self._logs[place >> _PLACE_BITS], place & ((1 << _PLACE_BITS) - 1)
        line = os.pread(log.descriptor, _LINE, at)
        if b"\n" not in line:
            line = os.pread(log.descriptor, _PIECE, at)
        return line.partition(b"\n")[0].split(b"\0")[1:]
