"""What a checkpoint is on disk, and the one order in which it is written. Nothing here is ever executed or unpickled.

    0000000120-3f9c21aa.data     the pieces, one after the other
    0000000120-3f9c21aa.json     the manifest: what the pieces are, with a checksum of each; its last line is its own

    write X.data.partial, fsync  ->  rename to X.data, fsync directory
    write X.json.partial, fsync  ->  rename to X.json, fsync directory      now it counts
    read both back and compare   ->  remove older ones, manifest first

A name is used once. So a checkpoint that is taken again after a restore does not overwrite one that was found damaged.
"""

import itertools
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoint.disk import Disk
from stoker.errors import CheckpointError, ConfigError
from stoker.host.headroom import headroom_bytes

MANIFEST_VERSION = 1
ALIGNMENT = 64
_PARTIAL = ".partial"
_NAME = re.compile(r"(\d{10,})-[0-9a-f]{8}\.json")
_CHUNK = 16 << 20
_LONGEST_MANIFEST = 1 << 30

NONSENSE = (TypeError, KeyError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
"""What Python raises while it reads a document that we have not written, though its checksum is right."""


@dataclass(frozen=True, slots=True)
class DataRange:
    """A range of the data, and the checksum of all its bytes."""

    offset: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a checkpoint."""

    step: int
    kept: bool
    pieces: tuple[DataRange, ...]
    document: Any
    """The state in JSON's terms, see `tree`; it refers to pieces by their number."""

    @property
    def data_bytes(self) -> int:
        """The length of the data."""
        return self.pieces[-1].offset + self.pieces[-1].length if self.pieces else 0


class Damaged(CheckpointError):  # noqa: N818
    """A file is not what was written, or is missing."""


def lay_out(lengths: Iterable[int]) -> tuple[list[int], int]:
    """Where each of some pieces begins when they lie one after the other, and where the last one ends."""
    offsets, end = [], 0
    for length in lengths:
        offsets.append(end)
        end += -(-length // ALIGNMENT) * ALIGNMENT
    return offsets, end


def to_text(manifest: Manifest) -> bytes:
    """A manifest as it is written."""
    body = json.dumps(
        {
            "version": MANIFEST_VERSION,
            "step": manifest.step,
            "kept": manifest.kept,
            "pieces": [[piece.offset, piece.length, piece.checksum] for piece in manifest.pieces],
            "document": manifest.document,
        },
        separators=(",", ":"),
    ).encode()
    return b"%b\ncrc32 %08x\n" % (body, zlib.crc32(body))


def of_text(text: bytes) -> Manifest:
    """Read a manifest from text. Raises Damaged."""
    body, _, rest = text.partition(b"\n")
    if rest != b"crc32 %08x\n" % zlib.crc32(body):
        raise Damaged("its manifest is damaged")
    try:
        read = json.loads(body)
        version, step, kept, pieces = (read[name] for name in ("version", "step", "kept", "pieces"))
        if _is_count(version) and version > MANIFEST_VERSION:
            raise CheckpointError(
                f"it was written by a newer stoker (version {version} of the format; this one knows {MANIFEST_VERSION}): "
                "upgrade"
            )
        if not _is_count(version) or not _is_count(step) or type(kept) is not bool:
            raise Damaged("its manifest makes no sense")
        if any(len(piece) != 3 or not all(map(_is_count, piece)) for piece in pieces):
            raise Damaged("its manifest makes no sense")
        return Manifest(step, kept, tuple(DataRange(*piece) for piece in pieces), read["document"])
    except NONSENSE as error:
        raise Damaged(f"its manifest makes no sense ({type(error).__name__}: {error})") from error


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


class Directory:
    """A directory of checkpoints."""

    def __init__(self, path: str | os.PathLike[str], disk: Disk | None = None) -> None:
        self.path = Path(path)
        self.disk = disk or Disk()

    def names(self) -> list[str]:
        """All checkpoints that have a manifest, the newest first."""
        try:
            found = [match for entry in os.listdir(self.path) if (match := _NAME.fullmatch(entry))]
        except FileNotFoundError:
            return []
        found.sort(key=lambda match: (int(match[1]), self._age(match[0])), reverse=True)
        return [match[0].removesuffix(".json") for match in found]

    def written_at(self, name: str) -> float:
        """When a checkpoint was written, as Unix time; 0 if it has gone."""
        return self._age(f"{name}.json") / 1e9

    def _age(self, entry: str) -> int:
        try:
            return (self.path / entry).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def save(self, step: int, document: Any, content: memoryview, lengths: Sequence[int], *, kept: bool = False) -> str:
        """Write a checkpoint. When this returns it is on the device, and was read back."""
        offsets, end = lay_out(lengths)
        bounds = [*offsets, end]
        checksums: list[int] = []
        name = f"{step:010d}-{secrets.token_hex(4)}"
        data, manifest = self.path / f"{name}.data", self.path / f"{name}.json"
        try:
            self._put(data, _chunks(content, bounds, checksums))
            pieces = tuple(
                DataRange(start, stop - start, checksum)
                for start, stop, checksum in zip(bounds, bounds[1:], checksums, strict=False)
            )
            self._put(manifest, [to_text(Manifest(step, kept, pieces, document))])
            self._make_newest(name, step)
            self.verify(name)
        except BaseException:
            for path in (manifest, data):
                for left in (path, path.with_name(path.name + _PARTIAL)):
                    self.disk.unlink(left)
            raise
        return name

    def _make_newest(self, name: str, step: int) -> None:
        """Date a checkpoint after others of its step, even if the clock was set back meanwhile."""
        others = [other for other in self.names() if other != name and int(other.split("-")[0]) == step]
        latest = max((self._age(f"{other}.json") for other in others), default=0)
        if self._age(f"{name}.json") <= latest:
            os.utime(self.path / f"{name}.json", ns=(latest + 1, latest + 1))

    def _put(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        partial = path.with_name(path.name + _PARTIAL)
        self.disk.write(partial, parts)
        self.disk.rename(partial, path)
        self.disk.settle(self.path)

    def manifest(self, name: str) -> Manifest:
        """The manifest of a checkpoint. Raises Damaged."""
        try:
            descriptor = os.open(self.path / f"{name}.json", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_MANIFEST:
                    raise Damaged(f"its manifest has {status.st_size:,} bytes")
                return of_text(file.read())
        except OSError as error:
            raise Damaged(f"its manifest cannot be read ({error.strerror})") from error

    def verify(self, name: str) -> Manifest:
        """Compare every byte with its checksum. Raises Damaged if one differs."""
        manifest = self.manifest(name)
        for _ in self._read(name, manifest, keep=False):
            pass
        return manifest

    def load(self, name: str) -> tuple[Manifest, list[bytearray]]:
        """A checkpoint and the contents of its pieces, after every byte was compared. Raises Damaged."""
        manifest = self.manifest(name)
        return manifest, list(self._read(name, manifest, keep=True))

    def _read(self, name: str, manifest: Manifest, *, keep: bool) -> Iterator[bytearray]:
        path = self.path / f"{name}.data"
        try:
            with path.open("rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                if length != manifest.data_bytes:
                    raise Damaged(f"its data has {length:,} bytes instead of {manifest.data_bytes:,}")
                if any(one.offset + one.length != next_.offset for one, next_ in itertools.pairwise(manifest.pieces)):
                    raise Damaged("its pieces do not lie one after the other")
                if keep:
                    _check_memory(length)
                for number, piece in enumerate(manifest.pieces):
                    content = bytearray(piece.length if keep else min(piece.length, _CHUNK))
                    checksum = start = 0
                    while start < piece.length:
                        window = memoryview(content)[start:] if keep else memoryview(content)[: piece.length - start]
                        count = file.readinto(window[:_CHUNK])
                        if not count:
                            raise Damaged("its data ends too early")
                        checksum = zlib.crc32(window[:count], checksum)
                        start += count
                    if checksum != piece.checksum:
                        raise Damaged(f"piece {number} of its data is damaged")
                    yield content
        except OSError as error:
            raise Damaged(f"its data cannot be read ({error.strerror})") from error

    def prune(self, keep: int, newest: int, spared: Iterable[str] = ()) -> list[str]:
        """Remove whole checkpoints older than the `keep` newest up to step `newest`. Damaged ones are left alone."""
        whole = []
        for name in self.names():
            if name in spared:  # known to be damaged
                continue
            try:
                manifest = self.manifest(name)
            except CheckpointError:
                continue
            if not manifest.kept and manifest.step <= newest and (self.path / f"{name}.data").exists():
                whole.append(name)
        for name in whole[keep:]:
            self.disk.unlink(self.path / f"{name}.json")
            self.disk.unlink(self.path / f"{name}.data")
        if whole[keep:]:
            self.disk.settle(self.path)
        return whole[keep:]

    def sweep(self) -> None:
        """Remove files without a manifest, which an interrupted save left. Only the holder of the directory's lock may."""
        entries = set(os.listdir(self.path))
        for entry in entries:
            manifest = entry.removesuffix(_PARTIAL).replace(".data", ".json")
            if _NAME.fullmatch(manifest) and (entry.endswith(_PARTIAL) or manifest not in entries):
                self.disk.unlink(self.path / entry)


def _check_memory(length: int) -> None:
    room = max(0, headroom_bytes())
    if length > room:
        raise CheckpointError(f"it has {length:,} bytes, and memory has room for {room:,}: free some memory")


def _chunks(content: memoryview, bounds: Sequence[int], checksums: list[int]) -> Iterator[memoryview]:
    for start, stop in itertools.pairwise(bounds):
        checksum = 0
        for begin in range(start, stop, _CHUNK):
            chunk = content[begin : min(begin + _CHUNK, stop)]
            checksum = zlib.crc32(chunk, checksum)
            yield chunk
        checksums.append(checksum)


def made(path: Path, node: int | None) -> Path:
    """The folder of a run's checkpoints, made if it is missing; each node of several has its own."""
    path = path if node is None else path / f"node-{node}"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{path} is a file, and checkpoints need a directory") from None
    return path
