"""Where each sample of a tar shard lies. The index is made once, stored beside the shard, and used only for that shard.

    SHARD.tar.stoker-index     or, where that folder cannot be written, in the user's cache folder, by a digest of its path

    header      what it is, the state of the shard, a digest of its headers, the counts, a checksum of the rest
    numbers     int64: starts, ends, firsts, name bounds (samples); offsets, lengths, kinds (members)
    text        the names of the samples, one after the other, then the kinds, with a zero byte between two

An index that is damaged, or belongs to another state of the shard, is made anew. A shard of the same size and modification
time may be a copy that came with its index, or another shard (`cp -p`, `rsync -t`): where inode or change time differ, all
bytes that are not content of samples are compared by their digest, and the index is adopted if they are the same. It is
written under another name, then renamed.
"""

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import stat
import struct
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, SourceError
from stoker.source.files import pack_version, read_range
from stoker.source.reading import retried

Numbers = NDArray[np.int64]

SUFFIX = ".stoker-index"
BLOCK = 512
_MAGIC = b"stoker tar 2\n"
_HEADER = struct.Struct("<16sqqQq16sqqqI")
_TRIES = 3
_COLUMNS = 7
_DIGEST = 16
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
DAMAGE = (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError)


class Stamp(NamedTuple):
    """The state of a shard. It differs as soon as the shard is changed."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Ask the file system for a shard's state."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    @property
    def version(self) -> bytes:
        """As `file_version` says it."""
        return pack_version(*self)

    def may_be(self, other: "Stamp") -> bool:
        """Whether both may be of the same bytes: of a shard and its copy, or of one that was renamed or linked."""
        return self[:2] == other[:2]


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The samples of one shard, and their members."""

    stamp: Stamp
    digest: bytes
    """The digest of all bytes of the shard that are not content of samples: headers and other members."""
    extensions: tuple[str, ...]
    names: bytes
    starts: Numbers
    """The offset of the first member's header, for each sample."""
    ends: Numbers
    """The end of the last member's content, for each sample."""
    firsts: Numbers
    """The number of the first member, for each sample; at the end the number of all members."""
    name_bounds: Numbers
    offsets: Numbers
    """The offset of the content, for each member."""
    lengths: Numbers
    kinds: Numbers
    """The number of its extension among all extensions, for each member."""

    def __len__(self) -> int:
        return len(self.starts)

    def name(self, number: int) -> str:
        """The name of a sample: that of its members up to the first dot."""
        return self.names[self.name_bounds[number] : self.name_bounds[number + 1]].decode("utf-8", "surrogateescape")

    def only(self, extension: str) -> tuple[Numbers, Numbers]:
        """Offset and length of each sample's member with this extension; a KeyError that holds the first sample without."""
        kind = self.extensions.index(extension) if extension in self.extensions else -1
        found = np.flatnonzero(self.kinds == kind)
        owners = np.searchsorted(self.firsts, found, side="right") - 1
        if len(found) < len(self):
            raise KeyError(int(np.setdiff1d(np.arange(len(self)), owners)[0]))
        return self.offsets[found], self.lengths[found]

    def extensions_of(self, number: int) -> list[str]:
        """The extensions of a sample's members."""
        return [self.extensions[kind] for kind in self.kinds[self.firsts[number] : self.firsts[number + 1]]]


def split_name(name: str) -> tuple[str, str] | None:
    """A member's sample and extension, as WebDataset tells them: at the first dot after the last slash."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2].lower()) if match else None


def index_of(path: str) -> ShardIndex:
    """The index of a shard, as it was stored or made now."""
    stamp = Stamp.of(retried(partial(os.stat, path), path))
    for place in _places(path):
        with contextlib.suppress(OSError):
            stored = _read(place, stamp)
            if stored is None:
                continue
            if stored.stamp == stamp:
                return stored
            adopted = _adopted(path, stored)
            if adopted is not None:
                _store(path, index_bytes(adopted))
                return adopted
    try:
        index = retried(partial(_make, path), path)
    except ConfigError:
        raise
    except DAMAGE as error:
        raise SourceError(f"the shard {path} is damaged or no tar file: {error}") from error
    _store(path, index_bytes(index))
    return index


def _read(place: str, stamp: Stamp) -> ShardIndex | None:
    """A stored index, if it can be believed and may belong to a shard."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _longest(stamp.size):
            return None
        stored = index_of_bytes(file.read())
    return stored if stored is not None and stored.stamp.may_be(stamp) else None


def _longest(size: int) -> int:
    """No index of a shard can be longer: a member has a header of one block, and names lie in headers."""
    return _HEADER.size + 8 * _COLUMNS * (size // BLOCK + 2) + size


def _adopted(path: str, stored: ShardIndex) -> ShardIndex | None:
    """The index for the shard as it is now, if all is where it says."""
    with open(path, "rb") as file:
        for _ in range(_TRIES):
            stamp = Stamp.of(os.fstat(file.fileno()))
            if not stored.stamp.may_be(stamp) or _digest(file.fileno(), stored) != stored.digest:
                return None
            if Stamp.of(os.fstat(file.fileno())) == stamp:
                return replace(stored, stamp=stamp)
    return None


def _digest(descriptor: int, index: ShardIndex) -> bytes:
    """The digest of all bytes that are not content of samples."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    begins = [0, *(index.offsets + index.lengths).tolist()]
    ends = [*index.offsets.tolist(), index.stamp.size]
    for begin, end in zip(begins, ends, strict=True):
        digest.update(read_range(descriptor, begin, end - begin))
    return digest.digest()


def _make(path: str) -> ShardIndex:
    with open(path, "rb") as file:
        for _ in range(_TRIES):
            file.seek(0)
            stamp = Stamp.of(os.fstat(file.fileno()))
            index = indexed(path, stamp, file)
            index = replace(index, digest=_digest(file.fileno(), index))
            if Stamp.of(os.fstat(file.fileno())) == stamp:
                return index
    raise tarfile.ReadError("it was changed while it was read")


def indexed(path: str, stamp: Stamp, file: IO[bytes]) -> ShardIndex:
    """The index of a shard that is read from its beginning to its end; `digest` is left to the caller."""
    start = file.read(BLOCK)
    for magic, command in _COMPRESSED.items():
        if start.startswith(magic):
            raise ConfigError(f"the shard {path} is compressed, so its samples have no place of their own: {command} it")
    file.seek(0)
    names: dict[str, int] = {}
    extensions: dict[str, int] = {}
    starts: list[int] = []
    ends: list[int] = []
    firsts: list[int] = []
    members: list[tuple[int, int, int]] = []
    current, seen = None, set[str]()
    for member, (name, extension) in _members(path, file):
        if name != current:
            if name in names:
                raise ConfigError(
                    f"in the shard {path}, members of the sample {name!r} are not beside each other ({member.name!r} stands"
                    " apart): pack it with 'tar --sort=name'"
                )
            current = name
            seen.clear()
            names[name] = len(starts)
            starts.append(member.offset)
            ends.append(0)
            firsts.append(len(members))
        if extension in seen:
            raise ConfigError(f"in the shard {path}, the sample {name!r} has two members {extension!r}")
        seen.add(extension)
        members.append((member.offset_data, member.size, extensions.setdefault(extension, len(extensions))))
        ends[-1] = member.offset_data + member.size
    if not members:
        raise ConfigError(f"the shard {path} has no samples: files named like 000123.jpg, with a dot")
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    bounds = list(itertools.accumulate(map(len, encoded), initial=0))
    numbers = (starts, ends, [*firsts, len(members)], bounds, *zip(*members, strict=True))
    return ShardIndex(stamp, b"", tuple(extensions), b"".join(encoded), *(np.array(each, np.int64) for each in numbers))


def _members(path: str, file: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, tuple[str, str]]]:
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        last = -1
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if member.offset <= last or member.size < 0 or "\0" in member.name:
                raise tarfile.ReadError(f"the header at byte {member.offset:,} makes no sense")
            last = member.offset
            parts = split_name(member.name)
            if parts is None or member.isdir():
                continue
            if member.islnk() or member.issym():
                raise ConfigError(
                    f"in the shard {path}, {member.name!r} is a link, not content: pack it with"
                    " 'tar --dereference --hard-dereference'"
                )
            if member.issparse():
                raise ConfigError(f"in the shard {path}, {member.name!r} is stored with holes: pack it without '--sparse'")
            if member.isreg():
                yield member, parts
        file.seek(archive.offset)
        end = file.read(BLOCK)
        if end.strip(b"\0"):
            raise tarfile.ReadError(f"there is no header at byte {archive.offset:,}")
        if len(end) < BLOCK:
            raise tarfile.ReadError("it was cut off: its end mark is missing")
        while rest := file.read(1 << 20):
            if rest.strip(b"\0"):
                raise tarfile.ReadError("something follows its end mark: join archives with 'tar --concatenate'")


def index_bytes(index: ShardIndex) -> bytes:
    """An index as it is stored."""
    numbers = np.concatenate(
        [index.starts, index.ends, index.firsts, index.name_bounds, index.offsets, index.lengths, index.kinds]
    ).astype("<i8")
    text = index.names + "\0".join(index.extensions).encode("utf-8", "surrogateescape")
    body = numbers.tobytes() + text
    counts = len(index), len(index.kinds), len(index.names)
    return _HEADER.pack(_MAGIC, *index.stamp, index.digest, *counts, zlib.crc32(body)) + body


def index_of_bytes(stored: bytes) -> ShardIndex | None:
    """Read an index; None if it is not one that we wrote."""
    if len(stored) < _HEADER.size:
        return None
    magic, size, mtime_ns, inode, ctime_ns, digest, samples, members, named, checksum = _HEADER.unpack_from(stored)
    body = memoryview(stored)[_HEADER.size :]
    if magic.rstrip(b"\0") != _MAGIC or zlib.crc32(body) != checksum:
        return None
    counts = [samples, samples, samples + 1, samples + 1, members, members, members]
    if not 0 < samples <= members or named < 0 or 8 * sum(counts) + named > len(body):
        return None
    ends = list(itertools.accumulate(counts, initial=0))
    numbers = np.frombuffer(body, "<i8", ends[-1]).astype(np.int64, copy=False)
    text = bytes(body[numbers.nbytes :])
    extensions = tuple(text[named:].decode("utf-8", "surrogateescape").split("\0"))
    parts = (numbers[start:stop] for start, stop in itertools.pairwise(ends))
    index = ShardIndex(Stamp(size, mtime_ns, inode, ctime_ns), digest, extensions, text[:named], *parts)
    return index if _makes_sense(index) else None


def _makes_sense(index: ShardIndex) -> bool:
    """Whether samples and members lie in the shard one after another, and all numbers among those that they count."""
    places = np.stack([index.offsets, index.offsets + index.lengths], 1).ravel()
    ranges = np.stack([index.starts, index.ends], 1).ravel()
    rows = (places, ranges, index.firsts, index.name_bounds, index.kinds[index.kinds.argsort()])
    lasts = (index.stamp.size, index.stamp.size, len(index.kinds), len(index.names), len(index.extensions) - 1)
    return all(
        row[0] >= 0 and row[-1] <= last and bool((row[1:] >= row[:-1]).all()) for row, last in zip(rows, lasts, strict=True)
    ) and bool((index.firsts[0], index.firsts[-1]) == (0, len(index.kinds)))


def _places(path: str) -> list[str]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = [path + SUFFIX]
    if os.path.isabs(cache):
        digest = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
        places.append(os.path.join(cache, "stoker", digest + SUFFIX))
    return places


def _store(path: str, content: bytes) -> None:
    """Store an index where it may be written. Where it may not, it is made anew each time."""
    for place in _places(path):
        partial_place = f"{place}.{secrets.token_hex(4)}.partial"
        try:
            if not place.startswith(path):
                os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            with open(partial_place, "xb") as file:
                file.write(content)
            os.rename(partial_place, place)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial_place)
        else:
            return
