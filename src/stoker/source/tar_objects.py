"""Tar shards in an object store: each sample is one ranged request, if the shard is still the one that was indexed.

The index of a shard is made once, by reading its headers (`tar_index`), and kept in the user's cache folder for this very
shard: by its address, size and etag. A shard without an etag cannot be told from another, so its index is not kept.
"""

import bisect
import contextlib
import hashlib
import io
import itertools
import os
import secrets
from collections.abc import Sequence

import numpy as np

from stoker.errors import ConfigError, SourceError
from stoker.memory import Bytes
from stoker.source.addresses import Address, parse
from stoker.source.files import range_key
from stoker.source.listings import check, looked_up
from stoker.source.paths import common_folder
from stoker.source.pieces import ListedObject, Outcome, Piece
from stoker.source.reader import Reader
from stoker.source.reading import checked
from stoker.source.tar import ranges_of
from stoker.source.tar_index import DAMAGE, SUFFIX, ShardIndex, Stamp, index_bytes, index_of_bytes, indexed

_BLOCK = 4 << 20
_AHEAD = 4
"""Blocks that are under way while a shard is indexed."""


class TarObjects:
    """The samples of shards in a store, in the order of the addresses; with `member`, only that member of each."""

    def __init__(self, where: str | Sequence[str], member: str | None = None) -> None:
        self.shards = [parse(each) for each in ([where] if isinstance(where, str) else where)]
        if not self.shards:
            raise ConfigError("no shards: the list of addresses is empty")
        if len({shard.store for shard in self.shards}) > 1:
            raise ConfigError(f"shards of one source lie in one store, not in {self.shards[0].store} and another")
        self.member = member.lower().lstrip(".") if member is not None else None
        folder = common_folder(["/" + shard.key for shard in self.shards])[1:]
        self.name = str(Address(self.shards[0].store, folder)).rstrip("/")
        self._reader = Reader()
        found = looked_up(self.shards)
        indices = [self._index(shard, each) for shard, each in zip(self.shards, found, strict=True)]
        ranges = [ranges_of(str(shard), index, self.member) for shard, index in zip(self.shards, indices, strict=True)]
        self._etags = [each.etag for each in found]
        self._versions = [_stamp(each).version for each in found]
        self._firsts = list(itertools.accumulate(map(len, indices), initial=0))
        self._offsets = np.concatenate([offsets for offsets, _ in ranges])
        self._lengths = np.concatenate([lengths for _, lengths in ranges])

    def __len__(self) -> int:
        return self._firsts[-1]

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """From the index: the store is not asked."""
        return [int(self._lengths[number]) for number in checked(ids, len(self))]

    def key(self, number: int) -> bytes:
        """From the address of the shard and the range."""
        checked((number,), len(self))
        shard = self._shard(number)
        return range_key(str(self.shards[shard]), int(self._offsets[number]), int(self._lengths[number]))

    def version(self, number: int) -> bytes:
        """Of the shard as it was opened: another one is an error."""
        checked((number,), len(self))
        return self._versions[self._shard(number)]

    def read(self, ids: Sequence[int]) -> list[Bytes]:
        """One ranged request each, 64 at once."""
        full = [number for number in checked(ids, len(self)) if self._lengths[number]]
        answers = dict(zip(full, self._reader.read([self._piece(number) for number in full]), strict=True))
        for number, answer in answers.items():
            shard = self._shard(number)
            if answer.outcome is Outcome.CHANGED or (self._etags[shard] and answer.etag not in ("", self._etags[shard])):
                raise SourceError(f"the shard {self.shards[shard]} was changed since it was opened: open the source anew")
            check(answer, f"sample {number} in {self.shards[shard]}")
            if len(answer.content) != self._lengths[number]:
                raise SourceError(f"sample {number} in {self.shards[shard]} cannot be read: the shard ends early")
        return [answers[number].content if number in answers else b"" for number in ids]

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to get the first 256 samples, and 64 MiB, of those named."""
        full = (number for number in ids if 0 <= number < len(self) and self._lengths[number])
        self._reader.expect((self._piece(number), int(self._lengths[number])) for number in full)

    def _shard(self, number: int) -> int:
        return bisect.bisect_right(self._firsts, number) - 1

    def _piece(self, number: int) -> Piece:
        shard, start = self._shard(number), int(self._offsets[number])
        return Piece(*self.shards[shard], self._etags[shard], start, start + int(self._lengths[number]))

    def _index(self, shard: Address, found: ListedObject) -> ShardIndex:
        stamp, place = _stamp(found), _place(shard, found)
        if place is not None:
            with contextlib.suppress(OSError), open(place, "rb") as file:
                kept = index_of_bytes(file.read())
                if kept is not None and kept.stamp == stamp:
                    return kept
        try:
            index = indexed(str(shard), stamp, _Shard(shard, found, self._reader))  # type: ignore[arg-type]
        except ConfigError:
            raise
        except DAMAGE as error:
            raise SourceError(f"the shard {shard} is damaged or no tar file: {error}") from error
        if place is not None:
            _keep(place, index_bytes(index))
        return index


class _Shard(io.RawIOBase):
    """A shard as a file that is read forwards, some blocks ahead."""

    def __init__(self, shard: Address, found: ListedObject, reader: Reader) -> None:
        self._shard, self._found, self._reader = shard, found, reader
        self._position, self._number = 0, -1
        self._block: Bytes = b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte; nothing is read."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._found.size}[whence]
        return self._position

    def tell(self) -> int:
        """The next byte."""
        return self._position

    def read(self, length: int = -1) -> bytes:
        """The next bytes, fewer only where the shard ends."""
        end = self._found.size if length < 0 else min(self._position + length, self._found.size)
        parts = []
        while self._position < end:
            self._load(self._position // _BLOCK)
            begin = self._position % _BLOCK
            part = bytes(self._block[begin : begin + end - self._position])
            self._position += len(part)
            parts.append(part)
        return b"".join(parts)

    def _load(self, number: int) -> None:
        if number == self._number:
            return
        follows = number == self._number + 1
        answer = self._reader.read([self._piece(number)])[0]
        if answer.outcome is Outcome.CHANGED:
            raise SourceError(f"the shard {self._shard} was changed while it was read")
        check(answer, str(self._shard))
        piece = self._piece(number)
        if len(answer.content) != piece.end - piece.start:
            raise SourceError(f"the shard {self._shard} cannot be read: it ends early")
        self._number, self._block = number, answer.content
        last = (self._found.size - 1) // _BLOCK
        if follows:
            ahead = range(number + 1, min(number + _AHEAD, last) + 1)
            self._reader.expect((self._piece(later), _BLOCK) for later in ahead)

    def _piece(self, number: int) -> Piece:
        start = number * _BLOCK
        return Piece(*self._shard, self._found.etag, start, min(start + _BLOCK, self._found.size))


def _stamp(found: ListedObject) -> Stamp:
    """The state of a shard, as an index notes it."""
    digest = hashlib.blake2b(found.etag.encode(), digest_size=15).digest()
    return Stamp(found.size, int.from_bytes(digest[:7], "little"), int.from_bytes(digest[7:], "little"), 0)


def _place(shard: Address, found: ListedObject) -> str | None:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not found.etag or not os.path.isabs(cache):
        return None
    digest = hashlib.blake2b(f"{shard} {found.etag}".encode(), digest_size=16).hexdigest()
    return os.path.join(cache, "stoker", digest + SUFFIX)


def _keep(place: str, content: bytes) -> None:
    """Keep an index where that is possible. Names may be private, so the file is the user's alone."""
    unseen = f"{place}.{secrets.token_hex(4)}.partial"
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        descriptor = os.open(unseen, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.rename(unseen, place)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unseen)
