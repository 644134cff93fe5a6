"""Regular files as samples: the files of a folder, of a glob, or of a list.

Nothing is asked of a file before it is needed; what is there when it is read counts. Reading ahead is left to the kernel
(`posix_fadvise`), so no thread of ours is needed for it.
"""

import contextlib
import hashlib
import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.source.paths import PathLike, Paths, absolute, common_folder, listed, matched, walked
from stoker.source.reading import checked, retried

# One call reads ahead at most the larger of the device's request size and its read-ahead: rarely less than this.
_AHEAD = 128 << 10
_TOGETHER = 32
_EXPECTED_FILES = 256
_EXPECTED_BYTES = 64 << 20
_SETTLED_NS = 2_000_000_000
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC


def file_key(path: str | bytes) -> bytes:
    """What a file is called in a cache: 16 bytes of its path, which is absolute as `os.path.abspath` makes it."""
    return hashlib.blake2b(os.fsencode(path), digest_size=16).digest()


def range_key(path: str | bytes, offset: int, length: int) -> bytes:
    """What a range of a file is called in a cache, likewise."""
    return hashlib.blake2b(os.fsencode(path) + b"\0" + struct.pack("<qq", offset, length), digest_size=16).digest()


def shared_file_key(path: str | bytes, roots: tuple[str, ...]) -> bytes | None:
    """What a file is called in the caches of several hosts: 16 bytes of its path from the folder of the data on.

    `roots` are the folders of the data, which are called as `shared_names` says.
    """
    name = _shared_name(path, roots)
    return None if name is None else file_key(name)


def shared_range_key(path: str | bytes, offset: int, length: int, roots: tuple[str, ...]) -> bytes | None:
    """What a range of a file is called there, likewise."""
    name = _shared_name(path, roots)
    return None if name is None else range_key(name, offset, length)


def _shared_name(path: str | bytes, roots: tuple[str, ...]) -> str | None:
    name = os.fsdecode(path)
    for folder, called in shared_names(roots).items():
        if name.startswith(folder + os.sep):
            return called + name[len(folder) :]
    return None


@lru_cache(256)
def shared_names(roots: tuple[str, ...]) -> dict[str, str]:
    """What all hosts call the folders of a dataset, by folder: the last part of its path, as it may lie anywhere.

    If folders of one dataset end alike (2019/train and 2020/train), as many parts as tell them apart.
    """
    folders = [root.rstrip(os.sep) for root in roots]
    names: list[str] = []
    parts = 0
    while len(set(names)) < len(set(folders)):
        parts += 1
        names = [os.sep.join(folder.split(os.sep)[-parts:]) for folder in folders]
    return dict(zip(folders, names, strict=True))


def file_version(status: os.stat_result) -> bytes:
    """The version of a file, 32 bytes. It differs as soon as the file is changed or replaced."""
    return pack_version(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def pack_version(size: int, mtime_ns: int, inode: int, ctime_ns: int) -> bytes:
    """The version of a file whose status is known by these numbers."""
    return struct.pack("<qqQq", size, mtime_ns, inode, ctime_ns)


def is_old_enough(status: os.stat_result) -> bool:
    """Whether another change would show in a file's time: a file that was changed just now may still be written to.

    A time in the future, which is there after the clock was set back, is as good as an old one: the next change differs.
    """
    return abs(time.time_ns() - status.st_mtime_ns) > _SETTLED_NS


def read_ahead(descriptor: int, offset: int, length: int) -> None:
    """Let the kernel begin to read a range, without waiting for it."""
    for start in range(offset, offset + length, _AHEAD):
        os.posix_fadvise(descriptor, start, min(_AHEAD, offset + length - start), os.POSIX_FADV_WILLNEED)


def drop_from_page_cache(descriptor: int, offset: int = 0, length: int = 0) -> None:
    """Give back the kernel's copy of a file, or of the pages that lie wholly in a range of it."""
    os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


class Files:
    """Files by number.

    Of a folder with sub-folders, the samples and labels are those of torchvision's ImageFolder: the sub-folders are the
    classes, and files beside them do not count. A folder of files alone, a glob and a list have no labels. Hidden files and
    folders are passed by. A list keeps its order, and only its first file is looked at now.
    """

    def __init__(self, where: PathLike | Sequence[PathLike]) -> None:
        self.labels: NDArray[np.int64] | None = None
        self.classes: list[str] | None = None
        if isinstance(where, str | os.PathLike):
            text = os.fspath(where)
            if os.path.isdir(text):
                self.name = os.path.abspath(text)
                self._scan()
                return
            paths = matched(text)
        else:
            paths = [absolute(path) for path in where]
            if not paths:
                raise ConfigError("no files: the list of paths is empty")
            if not os.path.isfile(paths[0]):
                what = "is a folder: give it alone, or its files" if os.path.isdir(paths[0]) else "there is no such file"
                raise ConfigError(f"{paths[0]} (the first of {len(paths):,} paths): {what}")
        folder = common_folder(paths)
        self.name = folder.rstrip("/") or "/"
        self.paths = Paths.of(folder, (path[len(folder) :] for path in paths))

    def _scan(self) -> None:
        folder = os.path.join(self.name, "")
        try:
            classes, loose = listed(folder)
            found = [walked(os.path.join(folder, name)) for name in classes]
        except OSError as error:
            raise ConfigError(f"the folder {self.name} cannot be listed: {error.filename}: {error.strerror}") from error
        names = [path[len(folder) :] for paths in found for path in paths] if classes else loose
        if not names:
            beside = f"; the {len(loose)} beside its sub-folders do not count" if loose else ""
            raise ConfigError(f"no files in the folder {self.name} (hidden ones do not count{beside})")
        if classes:
            self.classes = classes
            self.labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in found])
        self.paths = Paths.of(folder, names)

    def __len__(self) -> int:
        return len(self.paths)

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """The sizes of the files now."""
        return [self._status(number).st_size for number in checked(ids, len(self))]

    def key(self, number: int) -> bytes:
        """See `file_key`."""
        checked((number,), len(self))
        return file_key(self.paths.encoded(number))

    def shared_key(self, number: int, roots: tuple[str, ...]) -> bytes:
        """See `shared_file_key`."""
        checked((number,), len(self))
        path = self.paths.encoded(number)
        return shared_file_key(path, roots) or file_key(path)

    def version(self, number: int) -> bytes:
        """See `file_version`."""
        checked((number,), len(self))
        return file_version(self._status(number))

    def is_settled(self, number: int) -> bool:
        """See `is_old_enough`."""
        return is_old_enough(self._status(number))

    def _status(self, number: int) -> os.stat_result:
        path = self.paths.encoded(number)
        return retried(partial(os.stat, path), os.fsdecode(path))

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The whole files. Of several, the kernel reads the next ones while we copy the first."""
        paths = [self.paths.encoded(number) for number in checked(ids, len(self))]
        if len(paths) == 1:
            return [_read_again(paths[0])]
        contents: list[bytes] = []
        for start in range(0, len(paths), _TOGETHER):
            contents += _read_together(paths[start : start + _TOGETHER])
        return contents

    def expect(self, ids: Sequence[int]) -> None:
        """Let the kernel begin to read: the first 256 files, and 64 MiB, of those named."""
        left = _EXPECTED_BYTES

        def begin(descriptor: int) -> None:
            nonlocal left
            left -= _begin(descriptor, left)

        self._each(ids[:_EXPECTED_FILES], begin)

    def release(self, ids: Sequence[int]) -> None:
        """Drop the files from the page cache."""
        self._each(ids, drop_from_page_cache)

    def _each(self, ids: Sequence[int], act: Callable[[int], None]) -> None:
        """Open one file after the other. This is only for advice, so errors are left for reading to raise."""
        for number in ids:
            if 0 <= number < len(self):
                with contextlib.suppress(OSError):
                    descriptor = os.open(self.paths.encoded(number), _READ_ONLY)
                    try:
                        act(descriptor)
                    finally:
                        os.close(descriptor)


def _begin(descriptor: int, most: int) -> int:
    length = min(os.fstat(descriptor).st_size, most)
    read_ahead(descriptor, 0, length)
    return length


def _read_again(path: bytes) -> bytes:
    return retried(partial(_read_path, path), os.fsdecode(path))


def _read_path(path: bytes) -> bytes:
    descriptor = os.open(path, _READ_ONLY)
    try:
        return _read_all(descriptor)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    """Read a file up to its size now. It may shrink or grow meanwhile."""
    return read_range(descriptor, 0, os.fstat(descriptor).st_size)


def read_range(descriptor: int, offset: int, length: int) -> bytes:
    """Bytes of a file, fewer only where it ends."""
    content = os.pread(descriptor, length, offset)
    if len(content) == length:
        return content
    parts = [content]
    read = len(content)
    while parts[-1] and read < length:
        parts.append(os.pread(descriptor, length - read, offset + read))
        read += len(parts[-1])
    return b"".join(parts)


def _read_together(paths: Sequence[bytes]) -> list[bytes]:
    descriptors: list[int] = []
    left = _EXPECTED_BYTES
    contents: list[bytes] = []
    try:
        for path in paths:
            descriptor = -1
            with contextlib.suppress(OSError):
                descriptor = os.open(path, _READ_ONLY)
                left -= _begin(descriptor, left)
            descriptors.append(descriptor)
        for path, descriptor in zip(paths, descriptors, strict=True):
            try:
                contents.append(_read_all(descriptor))
            except OSError:
                contents.append(_read_again(path))
    finally:
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
    return contents
