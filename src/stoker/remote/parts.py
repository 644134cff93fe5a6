"""Which part of a batch's preparation remote workers do, and what came of each part that was tried.

    all       read, prepare and collate there; the finished batch is sent
    prepare   files are read on the trainer's host: what the dataset opens there is asked for here
    samples   read and prepare there; the samples are sent, and collated in the training process

Each work carries its part, so another one may be used from the next work on. There is no torch here.
"""

import threading
from collections.abc import Mapping

from stoker.plan import OFFLOAD_PARTS
from stoker.remote.files import ServedFiles

PARTS = ALL, PREPARE, SAMPLES = OFFLOAD_PARTS
_ENOUGH = 4
"""After so many works a part is judged by what came of them."""
_SMALLER = 0.9
"""Samples that are not shorter than this part of their batch are not worth collating here."""


class Parts:
    """The part that works are given with now, and what came of all parts so far. Seats and the relay use it together."""

    def __init__(self, now: str = ALL, against: Mapping[str, str] | None = None, files: ServedFiles | None = None) -> None:
        """`against` says why a part cannot work, in words, where that is known before."""
        self.now = now
        self.files = files or ServedFiles(())
        self._against = dict(against or {})
        self._lock = threading.Lock()
        self._made = dict.fromkeys(PARTS, 0)
        self._failed = dict.fromkeys(PARTS, 0)
        self._files = dict.fromkeys(PARTS, 0)
        self._bytes = dict.fromkeys(PARTS, 0)

    def note(self, part: str, files: int, length: int | None) -> None:
        """A work has come back: how many files were given for it, and how long its batch is; None if it failed."""
        with self._lock:
            self._made[part] += length is not None
            self._failed[part] += length is None
            self._files[part] += files
            self._bytes[part] += length or 0

    def against(self, part: str) -> str:
        """Why a part is not used, in words for people; "" if nothing is known against it."""
        with self._lock:
            if part in self._against:
                return self._against[part]
            if self._failed[part] >= _ENOUGH and not self._made[part]:
                return "workers on other hosts could not make a batch that way"
            if self._made[part] < _ENOUGH:
                return ""
            if part == PREPARE and not self._files[part]:
                return "the dataset opened no file of this host from Python"
            if part == SAMPLES and self._made[ALL] and self._mean(SAMPLES) > _SMALLER * self._mean(ALL):
                return f"samples are not shorter than a batch ({self._mean(SAMPLES):.0f} and {self._mean(ALL):.0f} bytes)"
            return ""

    def possible(self) -> list[str]:
        """The parts that nothing is known against; all of a batch, if there is none."""
        return [part for part in PARTS if not self.against(part)] or [ALL]

    def _mean(self, part: str) -> float:
        return self._bytes[part] / self._made[part]
