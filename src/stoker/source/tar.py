"""Tar shards in WebDataset's layout: members with the same name up to the first dot, beside each other, are one sample.

A sample is one range of bytes of its shard, so one `pread` fetches it: the headers and contents of its members as they lie
there (`members` takes them apart without a copy), or the content of one member alone. Offsets count only for the very shard
they were made for: a shard that changes while it is open is an error, never wrong bytes. One that was copied over itself or
renamed is compared with its index before it is read on.
"""

import bisect
import contextlib
import errno
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np

from stoker.errors import ConfigError, SourceError
from stoker.memory import Bytes
from stoker.source.files import drop_from_page_cache, file_version, range_key, read_ahead, read_range, shared_range_key
from stoker.source.paths import PathLike, common_folder
from stoker.source.process import Descriptors, PerProcess
from stoker.source.reading import checked, retried
from stoker.source.tar_index import BLOCK, Numbers, ShardIndex, Stamp, index_of, split_name

_EXPECTED_BYTES = 64 << 20
_REGULAR = (b"0", b"\0", b"7")


class TarShards:
    """The samples of tar files, in the order of the paths; with `member`, only the member of each with that extension."""

    def __init__(self, paths: PathLike | Sequence[PathLike], member: str | None = None) -> None:
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = [os.path.abspath(path) for path in given]
        if not self.paths:
            raise ConfigError("no shards: the list of paths is empty")
        for path in self.paths:
            if not os.path.isfile(path):
                raise ConfigError(f"there is no shard {path}" + (": it is a folder" if os.path.isdir(path) else ""))
        self.member = member.lower().lstrip(".") if member is not None else None
        self.name = common_folder(self.paths).rstrip("/") or "/"
        indices = [index_of(path) for path in self.paths]
        ranges = [ranges_of(path, index, self.member) for path, index in zip(self.paths, indices, strict=True)]
        self._stamps = [index.stamp for index in indices]
        self._digests = [index.digest for index in indices]
        self._firsts = list(itertools.accumulate(map(len, indices), initial=0))
        self._offsets = np.concatenate([offsets for offsets, _ in ranges])
        self._lengths = np.concatenate([lengths for _, lengths in ranges])
        self._descriptors = PerProcess(Descriptors)

    def __len__(self) -> int:
        return self._firsts[-1]

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """From the index: no shard is touched."""
        return [int(self._lengths[number]) for number in checked(ids, len(self))]

    def sample_name(self, number: int) -> str:
        """The name of a sample: that of its members up to the first dot."""
        checked((number,), len(self))
        shard = self._shard(number)
        index = _index(self.paths[shard], Stamp.of(os.stat(self.paths[shard])))
        if index.digest != self._digests[shard]:
            raise self._changed(shard)
        return index.name(number - self._firsts[shard])

    def key(self, number: int) -> bytes:
        """From the path of the shard and the range: the same bytes have the same key in any list of shards."""
        checked((number,), len(self))
        shard, offset, length = self._range(number)
        return range_key(self.paths[shard], offset, length)

    def shared_key(self, number: int, roots: tuple[str, ...]) -> bytes:
        """The same for all hosts, wherever their shards lie."""
        checked((number,), len(self))
        shard, offset, length = self._range(number)
        return shared_range_key(self.paths[shard], offset, length, roots) or self.key(number)

    def ranges(self) -> Iterator[tuple[str, int, int, Stamp]]:
        """The range of each sample: shard, offset, length, and the state of the shard that these are right for."""
        for shard, (first, end) in enumerate(itertools.pairwise(self._firsts)):
            path, stamp = self.paths[shard], self._stamps[shard]
            for offset, length in zip(self._offsets[first:end].tolist(), self._lengths[first:end].tolist(), strict=True):
                yield path, offset, length, stamp

    def version(self, number: int) -> bytes:
        """The version of the shard as it is now."""
        checked((number,), len(self))
        path = self.paths[self._shard(number)]
        return file_version(retried(partial(os.stat, path), path))

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """One `pread` each. Of several, the kernel reads the next ones while we copy the first."""
        checked(ids, len(self))
        if len(ids) > 1:
            self.expect(ids)
        return [self._read(number) for number in ids]

    def expect(self, ids: Sequence[int]) -> None:
        """Let the kernel begin to read the first 64 MiB of those named."""
        descriptors, left = self._descriptors.get(), _EXPECTED_BYTES
        for number in ids:
            if 0 <= number < len(self) and left:
                shard, offset, length = self._range(number)
                length = min(length, left)
                left -= length
                with contextlib.suppress(OSError):
                    read_ahead(descriptors.get(self.paths[shard]).number, offset, length)

    def release(self, ids: Sequence[int]) -> None:
        """Drop the pages that hold nothing but one of these from the page cache."""
        descriptors = self._descriptors.get()
        for number in ids:
            if 0 <= number < len(self) and self._lengths[number]:
                shard, offset, length = self._range(number)
                with contextlib.suppress(OSError):
                    drop_from_page_cache(descriptors.get(self.paths[shard]).number, offset, length)

    def _shard(self, number: int) -> int:
        return bisect.bisect_right(self._firsts, number) - 1

    def _range(self, number: int) -> tuple[int, int, int]:
        return self._shard(number), int(self._offsets[number]), int(self._lengths[number])

    def _read(self, number: int) -> bytes:
        shard, offset, length = self._range(number)
        content = retried(partial(self._fetch, shard, offset, length), f"sample {number} in {self.paths[shard]}")
        if content is None:
            raise self._changed(shard)
        return content

    def _fetch(self, shard: int, offset: int, length: int) -> bytes | None:
        """Read a sample; None if the shard has changed, which trying again would not cure."""
        path, descriptors = self.paths[shard], self._descriptors.get()
        try:
            descriptor = descriptors.get(path)
            if Stamp.of(os.fstat(descriptor.number)) != self._stamps[shard]:
                descriptors.forget(path)
                descriptor = descriptors.get(path)  # as it is now, if another has taken its place
                if not self._adopt(shard, Stamp.of(os.fstat(descriptor.number))):
                    descriptors.forget(path)
                    return None
            content = read_range(descriptor.number, offset, length)
            if len(content) < length:
                raise OSError(errno.EIO, "it ends early")
        except OSError:
            descriptors.forget(path)
            raise
        return content

    def _adopt(self, shard: int, stamp: Stamp) -> bool:
        """Whether a shard whose stamp has changed still has all samples where they were."""
        if not stamp.may_be(self._stamps[shard]):
            return False
        index = index_of(self.paths[shard])
        if index.stamp != stamp or index.digest != self._digests[shard]:
            return False
        self._stamps[shard] = stamp
        return True

    def _changed(self, shard: int) -> SourceError:
        return SourceError(f"the shard {self.paths[shard]} was changed since it was opened: open the source anew")


def members(record: Bytes) -> dict[str, memoryview]:
    """The members of a sample by extension, as views of the record."""
    view, found = memoryview(record).toreadonly(), {}
    position, name, size = 0, None, None
    try:
        while position + BLOCK <= len(view):
            header = bytes(view[position : position + BLOCK])
            kind = header[156:157]
            plain = kind in _REGULAR
            length = size if plain and size is not None else _number(header[124:136])
            content = view[position + BLOCK : position + BLOCK + length]
            if len(content) != length:
                raise ValueError
            position += BLOCK + -(-length // BLOCK) * BLOCK
            if kind == b"L":
                name = _text(bytes(content))
            elif kind in (b"x", b"X"):
                name, size = _extended(bytes(content), name, size)
            elif kind not in (b"g", b"K"):
                parts = split_name(name if name is not None else _name(header))
                if plain and parts is not None:
                    found[parts[1]] = content
                name = size = None
    except ValueError as error:
        raise SourceError(f"this is no sample of a tar shard: no header at its byte {position:,}") from error
    return found


def _name(header: bytes) -> str:
    prefix, name = _text(header[345:500]), _text(header[:100])
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """Read a number of a header: octal digits, or binary if it is too large for those."""
    if field[0] == 0o200:
        return int.from_bytes(field[1:], "big")
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _extended(records: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
    """The name and size that a pax header gives to the next member: lines of `length key=value`."""
    while records.strip(b"\0"):
        length = int(records.partition(b" ")[0])
        if length < 1:
            raise ValueError
        key, _, value = records[:length].partition(b" ")[2].removesuffix(b"\n").partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape").rstrip("/")
        elif key == b"size":
            size = int(value)
        records = records[length:]
    return name, size


def ranges_of(path: str, index: ShardIndex, member: str | None) -> tuple[Numbers, Numbers]:
    """Offset and length of each sample, or of its member with this extension."""
    if member is None:
        return index.starts, index.ends - index.starts
    try:
        return index.only(member)
    except KeyError as missing:
        number = missing.args[0]
        there = ", ".join(repr(extension) for extension in index.extensions_of(number))
        raise ConfigError(
            f"in the shard {path}, the sample {index.name(number)!r} has no member {member!r}; it has {there}"
        ) from None


@lru_cache(maxsize=4)
def _index(path: str, stamp: Stamp) -> ShardIndex:
    """The index of a shard. The stamp is an argument so that another state of the shard is another cache entry."""
    return index_of(path)
