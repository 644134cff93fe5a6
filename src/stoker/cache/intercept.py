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
from stoker.meter import Tally
from stoker.source.files import drop_from_page_cache, file_key, file_version, is_old_enough, read_range
from stoker.source.reading import Bytes

LONGEST_BYTES = 64 << 20
_KNOWN = 1 << 17
_LONG_BYTES = 1 << 20
"""From here on only what is read of a file is copied."""
_MODES = frozenset({"r", "rt", "tr", "rb", "br"})
_TEXT = ("encoding", "errors", "newline")
_OPTIONS = {"encoding": None, "errors": None, "newline": None, "closefd": True, "opener": None}
_NEVER = tuple(
    os.path.join(folder, "")
    for folder in {"/proc", "/sys", "/dev", "/run", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")}
)


class CachedFile(io.BytesIO):
    """The bytes of a file, with what a file object has besides."""

    mode = "rb"

    def __init__(self, payload: Bytes, name: Any, path: str, tally: Tally) -> None:
        super().__init__(payload)
        self.name = name
        self._real = _RealFile(path, tally)

    def fileno(self) -> int:
        """Whoever wants a descriptor gets one of the file itself, at the same place."""
        return self._real.at(self.tell())

    def peek(self, size: int = 0) -> bytes:
        """Bytes to come, without moving on."""
        at = self.tell()
        return bytes(self.getbuffer()[at : at + max(size, io.DEFAULT_BUFFER_SIZE)])

    def writable(self) -> bool:
        """It was opened for reading."""
        return False

    def write(self, *_: Any) -> int:
        """It was opened for reading."""
        raise io.UnsupportedOperation("write")

    writelines = truncate = write  # type: ignore[assignment]

    def close(self) -> None:
        """Close."""
        self._real.close()
        super().close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle '_io.BufferedReader' object")


class CachedText(io.TextIOWrapper):
    """The same, as text."""

    mode = "r"

    def __init__(self, whole: Any, mode: str, **options: Any) -> None:
        super().__init__(whole, **options)
        self.mode = mode


class LongFile(io.BufferedIOBase):
    """A long file in the cache, of which only what is read is copied. What has left it comes from the file itself."""

    mode = "rb"

    def __init__(self, cache: Cache, key: bytes, size: int, name: Any, path: str) -> None:
        self._cache, self._key, self._size = cache, key, size
        self._at = 0
        self.name = name
        self._real = _RealFile(path, cache.tally)

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, or all that are left."""
        found = self.peek(self._size if size is None or size < 0 else size)
        self._at += len(found)
        return found

    read1 = read

    def peek(self, size: int = io.DEFAULT_BUFFER_SIZE) -> bytes:
        """Bytes to come, without moving on."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        stop = min(self._size, self._at + size)
        found = self._cache.get_part(self._key, self._at, stop)
        return found if found is not None else os.pread(self._real.at(self._at), max(0, stop - self._at), self._at)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a place."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        """Where it is."""
        return self._at

    def readable(self) -> bool:
        """Yes."""
        return True

    seekable = readable

    def fileno(self) -> int:
        """Whoever wants a descriptor gets one of the file itself, at the same place."""
        return self._real.at(self._at)

    def close(self) -> None:
        """Close."""
        self._real.close()
        super().close()


class _RealFile:
    """The file itself, for those who need its descriptor. What they read comes from storage."""

    def __init__(self, path: str, tally: Tally) -> None:
        self._path, self._tally = path, tally
        self._descriptor = -1

    def at(self, place: int) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._tally.miss(os.fstat(self._descriptor).st_size, is_looked_for=False)
        os.lseek(self._descriptor, place, os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _WholeFile:
    """A request for one file."""

    def __init__(self, path: str, key: bytes, size: int) -> None:
        self.path = path
        self.size = size
        self.keys = [key]
        self._read: os.stat_result | None = None
        self._length = -1

    def sizes(self, positions: list[int]) -> Sequence[int]:
        return [self.size]

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = read_range(descriptor, 0, os.fstat(descriptor).st_size)
            self._read = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        self._length = len(content)
        return [content]

    def is_settled(self, position: int) -> bool:
        found = self._read
        return (
            found is not None
            and self.keys[0].endswith(file_version(found))
            and self._length == self.size
            and is_old_enough(found)
        )

    def kept(self, positions: list[int]) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                drop_from_page_cache(descriptor)
            finally:
                os.close(descriptor)


class FileReads:
    """Reads of whole files below some folders, through a cache. Travels to workers."""

    def __init__(self, cache: Cache, roots: Sequence[str]) -> None:
        self.cache = cache
        self._roots = tuple(os.path.join(root, "") for root in roots)
        self._known: dict[str, tuple[str, bytes]] = {}

    def opened(self, name: Any) -> Any:
        """A file open for reading in binary; None if it is to be opened as ever."""
        if type(name) is not str:
            if isinstance(name, int):
                return None
            try:
                name = os.fsdecode(name)
            except TypeError:
                return None  # the error is for `open` to raise
        known = self._known.get(name)
        if known is None:
            known = self._learn(name)
        path, digest = known
        if not digest:
            return None
        try:
            found = os.stat(name)
        except (OSError, ValueError):
            return None
        size = found.st_size
        if not stat.S_ISREG(found.st_mode) or not 0 < size <= LONGEST_BYTES:
            return None
        cache, key = self.cache, digest + file_version(found)
        if size > _LONG_BYTES and cache.size(key) == size:
            cache.tally.hit(size)
            return LongFile(cache, key, size, name, path)
        payload: Bytes | None = cache.get(key)
        if payload is None and size <= cache.room_bytes():
            with contextlib.suppress(OSError):
                payload = cache.fetch(_WholeFile(path, key, size))[0]
        elif payload is None:
            cache.tally.miss(size)
        return None if payload is None else CachedFile(payload, name, path, cache.tally)

    def _learn(self, name: str) -> tuple[str, bytes]:
        """The absolute path and the key of a file, by its name; no key if it is none of ours."""
        try:
            path = os.path.abspath(name)
        except (OSError, ValueError):
            return name, b""
        # What lies behind `link/..` is not what the text says.
        is_ours = path.startswith(self._roots) and not is_never(path) and os.pardir not in name
        known = path, file_key(path) if is_ours else b""
        if os.path.isabs(name):  # or else it means something else in another working directory
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[name] = known
        return known


_here = threading.local()
_everywhere: FileReads | None = None


def is_never(path: str) -> bool:
    """Whether a path is no part of any dataset: of Python itself, or of the kernel."""
    return path.startswith(_NEVER)


def current() -> FileReads | None:
    """What is active in this thread."""
    return getattr(_here, "reads", None) or _everywhere


class _Opening:
    """Stands where `open` was: a file that is in the cache comes from there, and all else as before."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self.__name__, self.__doc__ = "open", original.__doc__

    def __call__(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if current() is not None and mode in _MODES and buffering != 0:
            opened = self._opened(file, mode, rest, named)
            if opened is not None:
                return opened
        return self._original(file, mode, buffering, *rest, **named)

    def _opened(self, file: Any, mode: str, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        options: dict[str, Any] = {}
        if rest or named:
            said = dict(zip(_OPTIONS, rest, strict=False)) | named
            options = {name: value for name, value in said.items() if value is not _OPTIONS.get(name, said)}
            if not options.keys() <= set(_TEXT) or ("b" in mode and options):
                return None
        binary = _come_through(file)
        return binary if binary is None or "b" in mode else CachedText(binary, mode, **options)


def _come_through(file: Any) -> Any:
    """The file from the cache, if it can be; not for what is opened on the way there."""
    reads = current()
    if reads is None or getattr(_here, "is_busy", False):
        return None
    _here.is_busy = True
    try:
        return reads.opened(file)
    finally:
        _here.is_busy = False


_are_replaced = False
_replacing = threading.Lock()


def _replace() -> None:
    """Put ours in the place of Python's, once in a process. It does nothing where nothing is active."""
    global _are_replaced
    if _are_replaced:
        return
    with _replacing:  # several worker threads begin at once
        if not _are_replaced:
            _replace_all()
            _are_replaced = True


def _in_child() -> None:
    global _replacing
    _replacing = threading.Lock()  # another thread may have held it, and is not here to let go of it


os.register_at_fork(after_in_child=_in_child)


def _replace_all() -> None:
    builtins.open, io.open = _Opening(builtins.open), _Opening(io.open)
    with contextlib.suppress(AttributeError):  # where NumPy's text readers keep what they found when they were first used
        openers = np.lib._datasource._file_openers  # type: ignore[attr-defined]
        openers._load()
        openers._file_openers[None] = io.open
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
        if isinstance(file, str | bytes) and self.mode == "r":
            file = _come_through(file) or file
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
