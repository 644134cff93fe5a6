"""Datasets as they are: while it is active, whole regular files that Python opens for reading come through a cache.

`open`, `io.open` and `pathlib` are the same function, which PIL, NumPy and most readers call; soundfile opens paths in C,
and gets the bytes instead. Libraries that open paths in C without asking Python are not seen. What is opened for writing,
is too long, is no regular file, or lies elsewhere than the dataset is opened as ever; so is a file that the cache has no
room for, so that whoever reads only a part of it reads no more than that.

It is active in worker processes for good, in worker threads for these threads, and in the training process only while
it prepares samples.
"""

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import io
import os
import stat
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from stoker.cache.cached import Cache
from stoker.source.files import drop_from_page_cache, file_key, file_version
from stoker.source.reading import Bytes

LONGEST_BYTES = 64 << 20
_MODES = frozenset({"r", "rt", "tr", "rb", "br"})
_TEXT = ("encoding", "errors", "newline")
_open = io.open
_NEVER = tuple(
    os.path.join(folder, "")
    for folder in {"/proc", "/sys", "/dev", "/run", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")}
)


class CachedFile(io.BytesIO):
    """The bytes of a file, with what a file object has besides."""

    mode = "rb"

    def __init__(self, payload: Bytes, name: Any) -> None:
        super().__init__(payload)
        self.name = name
        self._file: Any = None

    def fileno(self) -> int:
        """Whoever wants a descriptor gets one of the file itself, at the same place."""
        if self._file is None:
            self._file = _open(self.name, "rb", buffering=0)
        os.lseek(self._file.fileno(), self.tell(), os.SEEK_SET)
        return int(self._file.fileno())

    def peek(self, size: int = 0) -> bytes:
        """Bytes to come, without moving on."""
        at = self.tell()
        return bytes(self.getbuffer()[at : at + max(size, io.DEFAULT_BUFFER_SIZE)])

    def close(self) -> None:
        """Close."""
        if self._file is not None:
            self._file.close()
        super().close()


class CachedText(io.TextIOWrapper):
    """The same, as text."""

    mode = "r"

    def __init__(self, whole: CachedFile, mode: str, **options: Any) -> None:
        super().__init__(whole, **options)
        self.mode = mode


class _WholeFile:
    """A request for one file."""

    def __init__(self, path: str, found: os.stat_result) -> None:
        self.path = path
        self.size = found.st_size
        self.keys = [file_key(path) + file_version(found)]

    def sizes(self, positions: list[int]) -> Sequence[int]:
        return [self.size]

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        with _open(self.path, "rb", buffering=0) as file:
            return [file.readall()]

    def kept(self, positions: list[int]) -> None:
        with contextlib.suppress(OSError), _open(self.path, "rb", buffering=0) as file:
            drop_from_page_cache(file.fileno())


class FileReads:
    """Reads of whole files below some folders, through a cache. Travels to workers."""

    def __init__(self, cache: Cache, roots: Sequence[str]) -> None:
        self.cache = cache
        self._roots = tuple(os.path.join(root, "") for root in roots)

    def payload(self, path: Any) -> Bytes | None:
        """The bytes of a file; None if it is to be opened as ever."""
        if isinstance(path, int):
            return None
        try:
            path = os.path.abspath(os.fsdecode(path))
            if not path.startswith(self._roots) or is_never(path):
                return None
            found = os.stat(path)
        except (OSError, TypeError, ValueError):
            return None  # the error is for `open` to raise
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= LONGEST_BYTES:
            return None
        request, cache = _WholeFile(path, found), self.cache
        payload: Bytes | None = cache.get(request.keys[0])
        if payload is None and cache.has_room(found.st_size):
            with contextlib.suppress(OSError):
                payload = cache.fetch(request)[0]
        elif payload is None:
            cache.tally.miss(found.st_size)
        return payload


_here = threading.local()
_everywhere: FileReads | None = None


def is_never(path: str) -> bool:
    """Whether a path is no part of any dataset: of Python itself, or of the kernel."""
    return path.startswith(_NEVER)


def current() -> FileReads | None:
    """What is active in this thread."""
    return _everywhere or getattr(_here, "reads", None)


def _opening(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
    reads = current()
    if reads is not None and mode in _MODES and buffering != 0 and len(rest) <= 3 and named.get("opener") is None:
        payload = reads.payload(file)
        if payload is not None:
            whole = CachedFile(payload, file)
            if "b" in mode:
                return whole
            options = dict(zip(_TEXT, rest, strict=False)) | {name: named[name] for name in _TEXT if name in named}
            return CachedText(whole, mode, **options)
    return _open(file, mode, buffering, *rest, **named)


_opening.__name__, _opening.__doc__ = "open", _open.__doc__


def _replace() -> None:
    """Put ours in the place of Python's, once in a process. It does nothing where nothing is active."""
    if builtins.open is _opening:
        return
    builtins.open = io.open = _opening
    with contextlib.suppress(AttributeError):  # where NumPy's text readers keep what they found when they were first used
        openers = np.lib._datasource._file_openers  # type: ignore[attr-defined]
        openers._load()
        openers._file_openers[None] = _opening
    if "soundfile" in sys.modules:
        _replace_in_soundfile(sys.modules["soundfile"])
    else:
        sys.meta_path.insert(0, _Soundfile())


class _Soundfile(importlib.abc.MetaPathFinder):
    """Waits for `import soundfile`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find it where everybody else finds it."""
        if name != "soundfile":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace_in_soundfile(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _replace_in_soundfile(module: Any) -> None:
    original = module.SoundFile._open

    def opening(self: Any, file: Any, mode_int: int, closefd: bool) -> Any:
        reads = current()
        if reads is not None and isinstance(file, str | bytes) and self.mode == "r":
            payload = reads.payload(file)
            file = file if payload is None else io.BytesIO(payload)
        return original(self, file, mode_int, closefd)

    module.SoundFile._open = opening


def activate(reads: FileReads) -> None:
    """From now on, in this process."""
    global _everywhere
    _everywhere = reads
    _replace()


@contextlib.contextmanager
def active(reads: FileReads | None) -> Iterator[None]:
    """In this thread, while it lasts."""
    if reads is None:
        yield
        return
    _replace()
    before = getattr(_here, "reads", None)
    _here.reads = reads
    try:
        yield
    finally:
        _here.reads = before
