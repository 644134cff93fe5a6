"""A cache for unchanged datasets: regular files that Python opens for reading come whole through a cache.

`open`, `io.open` and `pathlib` are the same function, which PIL, NumPy and most readers call. soundfile opens paths in C,
and gets the bytes instead. Other libraries that open paths in C are not seen. All other files are opened normally: those
opened for writing, too long, not regular, or outside the dataset's folders. So is a file that the cache has no room for:
reading a part of it then reads no more than that part.

This is active in worker processes all the time, in worker threads for these threads only, and in the training process only
while it prepares samples.
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
from typing import Any, Protocol

import numpy as np

from stoker.cache import notes
from stoker.cache.asked import Ask, asked
from stoker.cache.cached import Cache
from stoker.cache.opened import CachedFile, CachedText, LongFile
from stoker.host import forks
from stoker.memory import Bytes
from stoker.source.files import drop_from_page_cache, file_key, file_version, is_old_enough, read_range, shared_file_key

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
    """Reads whole files below some folders through a cache. It is sent to workers.

    With `ask`, the caches of several hosts are one: what is not here is asked for there, by key and path. If they are
    ruled, nothing is kept here: who is asked decides that. `shared_roots` are the folders of data that other hosts may have
    elsewhere; those that are read, unless they are said.
    """

    ask: Ask | None = None
    shared_roots: tuple[str, ...] = ()

    def __init__(
        self,
        cache: Cache,
        roots: Sequence[str],
        ask: Ask | None = None,
        *,
        is_ruled: bool = False,
        shared_roots: Sequence[str] = (),
    ) -> None:
        self.cache = cache
        self.ask, self._is_ruled = ask, is_ruled
        self.roots = tuple(os.path.join(root, "") for root in roots)
        self.shared_roots = tuple(os.path.join(root, "") for root in shared_roots) or self.roots
        self._known: dict[str, tuple[str, bytes]] = {}

    def opened(self, name: Any) -> Any:
        """A file of the cache, open for reading in binary; None if the file should be opened normally."""
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
        notes.opened(path)
        cache, key = self.cache, digest + file_version(found)
        if size > _LONG_BYTES and cache.finds(key, size):
            return LongFile(cache, key, size, name, path)
        payload: Bytes | None = cache.get(key)
        if payload is None and self.ask is not None:
            payload = asked(cache, self.ask, key, path)
        if payload is None and not self._is_ruled and size <= cache.room_bytes():
            with contextlib.suppress(OSError):
                payload = cache.fetch(_WholeFile(path, key, size))[0]
        elif payload is None:
            payload = cache.staged(key)
            if payload is None:
                cache.tally.miss(size)
        return None if payload is None else CachedFile(payload, name, path, cache.tally)

    def _learn(self, name: str) -> tuple[str, bytes]:
        """The absolute path and the key of a file, by its name; no key if it is outside the folders."""
        try:
            path = os.path.abspath(name)
        except (OSError, ValueError):
            return name, b""
        # `link/..` is the parent of the link's target, not of the link.
        is_ours = path.startswith(self.roots) and not is_never(path) and os.pardir not in name
        key = file_key(path) if self.ask is None else shared_file_key(path, self.roots)
        known = path, key if is_ours and key else b""
        if os.path.isabs(name):  # a relative name means another file in another working directory
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[name] = known
        return known


class InterceptedReads(Protocol):
    """Where files come from that Python opens."""

    @property
    def cache(self) -> Cache | None:
        """The cache that they come through, if any."""

    def opened(self, name: Any) -> Any:
        """A file, open for reading in binary; None if it should be opened normally."""


_here = threading.local()
_everywhere: InterceptedReads | None = None


def is_never(path: str) -> bool:
    """Whether a path cannot be part of a dataset: it is Python's own, or the kernel's."""
    return path.startswith(_NEVER)


def current() -> InterceptedReads | None:
    """The Reads that are active in this thread."""
    return getattr(_here, "reads", None) or _everywhere


class _Opening:
    """Replaces `open`: a file of the cache comes from there, all others are opened normally."""

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
    """The file from the cache, if possible. Files that the cache itself opens are opened normally."""
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
    """Replace Python's `open` by ours, once in a process. Ours does nothing while nothing is active."""
    global _are_replaced
    if _are_replaced:
        return
    with _replacing:  # several worker threads begin at once
        if not _are_replaced:
            _replace_all()
            _are_replaced = True


def _in_child() -> None:
    global _replacing
    _replacing = threading.Lock()  # another thread may have held it at the fork, and does not exist in the child


forks.register(forks.Stage.LOCKS, after_in_child=_in_child)


def _replace_all() -> None:
    builtins.open, io.open = _Opening(builtins.open), _Opening(io.open)
    with contextlib.suppress(AttributeError):  # NumPy's text readers keep the `open` that they found first
        openers = np.lib._datasource._file_openers  # type: ignore[attr-defined]
        openers._load()
        openers._file_openers[None] = io.open
    if "soundfile" in sys.modules:
        _replace_in_soundfile(sys.modules["soundfile"])
    else:
        sys.meta_path.insert(0, _Soundfile())


class _Soundfile(importlib.abc.MetaPathFinder):
    """An import hook that acts on `import soundfile`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find soundfile by the other finders, and replace its opening of paths."""
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


def activate(reads: InterceptedReads | None) -> None:
    """Read this way in this process from now on."""
    global _everywhere
    _everywhere = reads
    _replace()


@contextlib.contextmanager
def active(reads: InterceptedReads | None) -> Iterator[None]:
    """Read through the cache in this thread, within the context."""
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
