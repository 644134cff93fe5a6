"""Rows of tables as samples: of Parquet and Arrow files, or of a dataset that Hugging Face `datasets` has saved.

Rows are read and kept by groups (`table_files`). Each process keeps the groups that came first, up to `keep` bytes, and the
last few; of those that are expected, a worker reads the next ones while the rows of others are used. With `column`, a
sample is what that column holds, as it lies in its group; without, it is the whole row, which `table_files.row` takes
apart.
"""

import bisect
import contextlib
import itertools
import mmap
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, SourceError
from stoker.extras import TABLES
from stoker.memory import Bytes
from stoker.source.files import file_version, range_key
from stoker.source.paths import PathLike, absolute, common_folder
from stoker.source.process import PerProcess
from stoker.source.reading import checked, retried
from stoker.units import parse_bytes

if TYPE_CHECKING:
    from stoker.source.table_files import TableFile

_OF_CONTENT = 24
"""Bytes of a version that are about the file's content."""
_AHEAD = 3
"""Groups that are read ahead, with the one whose rows are used."""
_PASSING = _AHEAD + 1
"""Groups for which there is room where not all can stay: a batch may need the one before, too."""


class Tables:
    """The rows of some files, in their order."""

    def __init__(self, paths: PathLike | Sequence[PathLike], column: str | None = None, keep: int | str = "1GB") -> None:
        TABLES.check()
        from stoker.source import table_files

        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = [absolute(path) for path in given]
        if not self.paths:
            raise ConfigError("no tables: the list of paths is empty")
        self.column = column
        self.name = common_folder(self.paths).rstrip("/") or "/"
        self._groups: list[tuple[int, int]] = []
        self._versions: list[bytes] = []
        rows: list[int] = []
        for number, path in enumerate(self.paths):
            if not os.path.isfile(path):
                raise ConfigError(f"there is no table {path}" + (": it is a folder" if os.path.isdir(path) else ""))
            self._versions.append(file_version(os.stat(path)))
            file = table_files.TableFile(path)
            if column is not None:
                table_files.check_column(path, file.schema, column)
            self._groups += [(number, group) for group, _ in enumerate(file.rows())]
            rows += file.rows()
        self._firsts = np.array([0, *itertools.accumulate(rows)], np.int64)
        if not len(self):
            raise ConfigError(f"no rows in {self.paths[0]}" + (" and others" if len(self.paths) > 1 else ""))
        files = list(zip(self.paths, self._versions, strict=True))
        self._held = PerProcess(partial(_Held, files, self._groups, self._firsts, column, parse_bytes(keep, "keep")))

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """The rows are read for it."""
        return [len(raw) for raw in self.read(ids)]

    def key(self, number: int) -> bytes:
        """From the path of the file, the column, and the row's place in it."""
        checked((number,), len(self))
        group, place = self._place(number)
        path = self.paths[self._groups[group][0]]
        return range_key(f"{path}\0{self.column or ''}", self._groups[group][1], place)

    def version(self, number: int) -> bytes:
        """Of the file as it was opened: what is read of another one is an error."""
        checked((number,), len(self))
        return self._versions[self._groups[self._place(number)[0]][0]]

    def read(self, ids: Sequence[int]) -> list[Bytes]:
        """Views of the groups that the rows are in."""
        if not len(ids):
            return []
        if (group := self._in_a_row(ids)) is not None:
            rows, held = slice(ids[0], ids[-1] + 1), self._held.get()
            content = held.get(group).content
            bounds = zip(held.starts[rows].tolist(), held.ends[rows].tolist(), strict=True)
            return [content[start:end] for start, end in bounds]
        numbers = np.asarray(ids, np.int64)
        checked((int(numbers.min()), int(numbers.max())), len(self))
        groups = (np.searchsorted(self._firsts, numbers, side="right") - 1).tolist()
        needed, held = set(groups), self._held.get()
        found = {group: held.get(group) for group in needed}
        if self.column is None:
            from stoker.source.table_files import encoded

            places = (numbers - self._firsts[groups]).tolist()
            return [encoded(found[group].batch, place) for group, place in zip(groups, places, strict=True)]
        starts, ends = held.starts[numbers].tolist(), held.ends[numbers].tolist()
        if len(needed) == 1:
            content = found[groups[0]].content
            return [content[start:end] for start, end in zip(starts, ends, strict=True)]
        contents = {group: each.content for group, each in found.items()}
        return [contents[group][start:end] for group, start, end in zip(groups, starts, ends, strict=True)]

    def _in_a_row(self, ids: Sequence[int]) -> int | None:
        """The group of a column's values that are asked for one after the other; None for others."""
        if self.column is None or not isinstance(ids, range | list) or not 0 <= ids[0] < len(self):
            return None
        group = self._place(ids[0])[0]
        follow = range(ids[0], ids[0] + len(ids))
        is_whole = follow.stop <= self._firsts[group + 1] and (
            ids == follow if isinstance(ids, range) else ids == [*follow]
        )
        return group if is_whole else None

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to read the next groups that these are in; a process that may fork does nothing, as it keeps no threads."""
        if not multiprocessing.current_process().daemon:
            return
        numbers = np.array([number for number in ids if 0 <= number < len(self)], np.int64)
        groups = dict.fromkeys((np.searchsorted(self._firsts, numbers, side="right") - 1).tolist())
        self._held.get().expect(list(groups)[:_AHEAD])

    def _place(self, number: int) -> tuple[int, int]:
        group = bisect.bisect_right(self._firsts, number) - 1
        return group, number - int(self._firsts[group])


class _Group(NamedTuple):
    """A group in memory."""

    batch: Any
    content: memoryview
    """Of the one column that is asked for."""
    bytes: int


class _Held:
    """The groups that one process holds, and the files that they come from.

    What came first stays: in order, what came last would always be what is needed last. The others pass, and PyArrow reads
    the next ones into their memory.
    """

    def __init__(
        self,
        files: list[tuple[str, bytes]],
        groups: list[tuple[int, int]],
        firsts: NDArray[np.int64],
        column: str | None,
        most_bytes: int,
    ) -> None:
        self._named, self._groups, self._firsts = files, groups, firsts
        self._column, self._most_bytes = column, most_bytes
        self.starts = self.ends = np.empty(0, np.int64)
        """Where each row's value lies in its group, for the groups that came."""
        if column is not None:
            self.starts, self.ends = np.empty((2, int(firsts[-1])), np.int64)
        self._lock = threading.Lock()
        self._files: dict[int, TableFile] = {}
        self._held: dict[int, _Group] = {}
        self._held_bytes = 0
        self._staying: list[int] = []
        self._passing: deque[int] = deque()
        self._all_stay = True
        """There was room for all that came."""
        self._coming: dict[int, threading.Event] = {}
        self._queue: SimpleQueue[int] | None = None

    def get(self, number: int) -> _Group:
        """A group, read if it is not held or just coming."""
        while (group := self._held.get(number)) is None:
            with self._lock:
                if number in self._held:
                    continue
                coming = self._coming.get(number)
                is_ours = coming is None
                if coming is None:
                    coming = self._coming[number] = threading.Event()
            if is_ours:
                return self._bring(number, coming)
            coming.wait()
        return group

    def _bring(self, number: int, coming: threading.Event) -> _Group:
        try:
            group = self._read(number)
            with self._lock:
                self._hold(number, group)
            return group
        finally:
            with self._lock:
                del self._coming[number]
            coming.set()

    def _hold(self, number: int, group: _Group) -> None:
        self._held[number] = group
        self._held_bytes += group.bytes
        self._all_stay = self._all_stay and self._held_bytes <= self._most_bytes
        (self._staying if self._all_stay else self._passing).append(number)
        while self._held_bytes > self._most_bytes and len(self._held) > 1:
            gives_way = self._staying and len(self._passing) <= _PASSING
            gone = self._held.pop(self._staying.pop() if gives_way else self._passing.popleft())
            self._held_bytes -= gone.bytes

    def _read(self, number: int) -> _Group:
        from stoker.source.table_files import TableFile, path_of, values_of

        file_number, place = self._groups[number]
        path, version = self._named[file_number]
        with self._lock:
            file = self._files.get(file_number)
        if file is None:
            file = self._files.setdefault(file_number, TableFile(path))
        if not _is_same(retried(partial(os.stat, path), path), version):
            raise SourceError(f"the table {path} was changed since it was opened: open the source anew")
        column = self._column
        batch = file.group(place, None if column is None else path_of(file.schema, column)[:1])
        if column is None:
            return _Group(batch, memoryview(b""), batch.nbytes)
        values = values_of(batch, column, path)
        rows = slice(self._firsts[number], self._firsts[number + 1])
        self.starts[rows], self.ends[rows] = values.bounds[:-1], values.bounds[1:]
        if file.is_mapped or not self._all_stay:
            return _Group(batch, values.content, batch.nbytes)
        return _Group(None, _in_large_pages(values.content), len(values.content))

    def expect(self, groups: Sequence[int]) -> None:
        """Read groups in a thread, one after the other."""
        if self._queue is None:
            self._queue = SimpleQueue()
            threading.Thread(target=self._serve, args=(self._queue,), name="stoker tables", daemon=True).start()
        for number in groups:
            with self._lock:
                if number in self._held or number in self._coming:
                    continue
                self._coming[number] = threading.Event()
            self._queue.put(number)

    def _serve(self, queue: "SimpleQueue[int]") -> None:
        while True:
            number = queue.get()
            try:
                self._bring(number, self._coming[number])
            except Exception:  # the one who asks for it reads it again, and raises
                continue


def _is_same(status: os.stat_result, version: bytes) -> bool:
    """Whether a file is the one of a version, by size, time and inode. A new link or other permissions change no row."""
    return file_version(status)[:_OF_CONTENT] == version[:_OF_CONTENT]


def _in_large_pages(content: memoryview) -> memoryview:
    """A copy for what stays. Small pages that nobody had before cost several times what is read into them; and PyArrow
    reads the next group into the memory of this one."""
    if not content.nbytes:
        return content
    room = mmap.mmap(-1, content.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # not every kernel has them
        room.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(room, np.uint8)[:] = np.frombuffer(content, np.uint8)
    return memoryview(room).toreadonly()
