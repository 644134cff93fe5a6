"""Which files each sample of a dataset opens, noted by workers when they prepare it for the first time.

A dataset need not list its files: it may make a path of the index, or open several. The indices of a batch say which of
them is being prepared (`noted`), and every file that comes through the cache meanwhile is noted for it. What was noted in
a batch is appended to a log by one write. The keeper reads the log from the second epoch on (`keeper/opens`). A record
need not be right: a wrong one costs a read that nobody uses.

    a line of the log    index, NUL, path, NUL, path ... newline
    beside it            a byte for each sample: whether it was noted; and one more: whether nothing is to be noted

Nothing is locked: the kernel appends one write after the other. A writer that is killed may leave half a line, which
spoils the next one.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Any, SupportsIndex

from stoker.cache import staging
from stoker.memory import Memory

MOST_SAMPLES = 1 << 25
MOST_BYTES = 512 << 20
_MOST_FILES = 64
"""So many files of a sample are noted."""


class Notes:
    """What is noted for one loader. It travels to workers of any start method, with the loader's staging."""

    def __init__(self, samples: int, *, is_listed: bool, memories: tuple[Memory, Memory] | None = None) -> None:
        self._samples, self._is_listed = samples, is_listed
        """With `is_listed`, the dataset lists a file for each sample: only samples that open several are worth a line."""
        if memories is None:
            memories = Memory(samples + 1), Memory(0)
            memories[0].reserve(0, samples + 1)
            appends = fcntl.fcntl(memories[1].descriptor, fcntl.F_GETFL) | os.O_APPEND
            fcntl.fcntl(memories[1].descriptor, fcntl.F_SETFL, appends)
        self._marks, self.log = memories
        self._seen: Any = memoryview(self._marks.map(0, samples + 1).buffer)

    def __reduce__(self) -> Any:
        return _travelled, (self._samples, self._is_listed, (self._marks, self.log))

    @property
    def is_open(self) -> bool:
        """Whether anything is to be noted."""
        return not self._seen[self._samples]

    def stop(self) -> None:
        """Note nothing any more, in any process."""
        self._seen[self._samples] = 1

    def settle(self) -> None:
        """Stop if all samples were noted."""
        if self.is_open and bytes(self._seen[: self._samples]).find(0) < 0:
            self.stop()

    @property
    def has_lines(self) -> bool:
        """Whether there is anything that a keeper could use."""
        return os.fstat(self.log.descriptor).st_size > 0

    def noting(self, ids: Iterator[Any]) -> Iterator[Any]:
        """Indices as they are prepared. What is opened before the next one is asked for belongs to the last."""
        found: dict[int, list[str]] = {}
        try:
            for index in ids:
                _here.paths = None
                if type(index) is int and 0 <= index < self._samples and not self._seen[index]:
                    paths = _here.paths = []
                    yield index
                    found[index] = paths
                else:
                    yield index
        finally:
            _here.paths = None
            with contextlib.suppress(OSError):
                self._write(found)

    def _write(self, found: dict[int, list[str]]) -> None:
        lines = [_line(index, paths) for index, paths in found.items() if len(paths) > self._is_listed]
        content = b"".join(lines)
        if content:
            if os.fstat(self.log.descriptor).st_size + len(content) > MOST_BYTES:
                self.stop()
                return
            os.write(self.log.descriptor, content)
        for index in found:
            self._seen[index] = 1


def _travelled(samples: int, is_listed: bool, memories: tuple[Memory, Memory]) -> Notes:
    return Notes(samples, is_listed=is_listed, memories=memories)


def _line(index: int, paths: list[str]) -> bytes:
    files = [os.fsencode(path) for path in paths[:_MOST_FILES] if "\n" not in path]
    return b"\0".join([b"%d" % index, *files]) + b"\n" if files else b""


class NotedIds(list[Any]):
    """The indices of a batch. As they are iterated, what is opened is noted for the latest."""

    __slots__ = ("_notes",)

    def __init__(self, ids: list[Any], notes: Notes) -> None:
        super().__init__(ids)
        self._notes = notes

    def __iter__(self) -> Iterator[Any]:
        return self._notes.noting(super().__iter__())

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = super().__getitem__(place)
        return NotedIds(found, self._notes) if isinstance(place, slice) else found

    def __reduce__(self) -> Any:
        return list, (super().copy(),)


_here = threading.local()


def noted(ids: Any) -> Any:
    """The indices of a batch that is about to be prepared in this thread: the same, but noted where that is wanted."""
    if type(ids) is not list or (beside := staging.current()) is None:
        return ids
    notes = beside.notes
    return ids if notes is None or not notes.is_open else NotedIds(ids, notes)


def opened(path: str) -> None:
    """A file comes through the cache."""
    paths = getattr(_here, "paths", None)
    if paths is not None and path not in paths:
        paths.append(path)
