"""What is said between hosts once they trust each other, as bytes. Pure: no sockets, clocks or threads.

    header | body | MAC of both | payload

    header   magic, version, kind, flags (0), request id, count, body bytes, payload bytes
    body     what the kind says below; small, and wholly under the MAC
    payload  items as the store has them (`stoker.sealed`), one after the other, with checksums that cover their keys

Rule: every length is compared with its limit before anything is done with it, and what is not exactly as written here
raises `FrameError`. Numbers have their lowest byte first.
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.errors import StokerError
from stoker.memory import Bytes

MAGIC = b"STKW"
VERSION = 1
NAME_BYTES = 16
"""Bytes of an item's name, as a directory has it: the key without the version."""
KEY_LIMIT = 255
KEYS_AT_ONCE = 512
"""Keys of one request for items. With the head, an answer stays below the kernel's limit of 1,024 buffers in one call."""
NAMES_AT_ONCE = 1 << 16
BODY_LIMIT = NAMES_AT_ONCE * NAME_BYTES + 64
PAYLOAD_LIMIT = 256 << 20
"""The longest payload of any frame, and so the longest item: a longer one comes from storage."""

_HEADER = struct.Struct("<4sBBHIIIQ")
HEADER_BYTES = _HEADER.size
_LIMIT = struct.Struct("<Q")
_WHICH = struct.Struct(f"<QI{NAME_BYTES}s")
_HELD = struct.Struct("<QB")
_TOLD = struct.Struct("<QI")


class FrameError(StokerError):
    """The other side sent what is no frame. Its connection is closed, and nothing else happens."""


class Kind(enum.IntEnum):
    """What a frame says. Requests are even, the answer to each is the next number; `TOLD` has none."""

    PING = 2
    PONG = 3
    GET = 4
    ITEMS = 5
    WHICH = 6
    HELD = 7
    TOLD = 8
    # 16 and more are left to preparation on other hosts: work and results, under the same header and MAC.


class Status(enum.IntEnum):
    """What an answer says of one item."""

    ABSENT = 0
    GIVEN = 1
    LATER = 2
    """It is there, but the answer would be longer than was asked for."""


@dataclass(frozen=True, slots=True)
class Header:
    """The fixed part of a frame."""

    kind: int
    number: int
    """The request's id, which its answer repeats."""
    count: int
    body_bytes: int
    payload_bytes: int

    def pack(self) -> bytes:
        """The header as bytes."""
        return _HEADER.pack(MAGIC, VERSION, self.kind, 0, self.number, self.count, self.body_bytes, self.payload_bytes)


def unpack_header(content: Bytes) -> Header:
    """A header from exactly its bytes."""
    magic, version, kind, flags, number, count, body_bytes, payload_bytes = _HEADER.unpack(content)
    if magic != MAGIC or version != VERSION or flags:
        raise FrameError("not a frame of this version")
    if count > NAMES_AT_ONCE or body_bytes > BODY_LIMIT or payload_bytes > PAYLOAD_LIMIT:
        raise FrameError("a length is beyond its limit")
    return Header(kind, number, count, body_bytes, payload_bytes)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame but for its payload."""

    header: Header
    body: bytes


def pack_get(keys: Sequence[bytes], limit_bytes: int) -> bytes:
    """The body that asks for items: how long the answer may be, the lengths of the keys, the keys."""
    if not 0 < len(keys) <= KEYS_AT_ONCE or not all(0 < len(key) <= KEY_LIMIT for key in keys):
        raise ValueError(f"1 to {KEYS_AT_ONCE} keys of 1 to {KEY_LIMIT} bytes, please")
    return b"".join((_LIMIT.pack(min(limit_bytes, PAYLOAD_LIMIT)), bytes(map(len, keys)), *keys))


def unpack_get(frame: Frame) -> tuple[list[bytes], int]:
    """The keys that are asked for, and how long the answer may be."""
    count, body = frame.header.count, frame.body
    place = _LIMIT.size + count
    if not 0 < count <= KEYS_AT_ONCE or len(body) < place or frame.header.payload_bytes:
        raise FrameError("not a request for items")
    limit_bytes: int = _LIMIT.unpack_from(body)[0]
    lengths = body[_LIMIT.size : place]
    if 0 in lengths or place + sum(lengths) != len(body) or limit_bytes > PAYLOAD_LIMIT:
        raise FrameError("a request for items has wrong lengths")
    keys = []
    for length in lengths:
        keys.append(body[place : place + length])
        place += length
    return keys, limit_bytes


def pack_items(statuses: Sequence[int], sizes: Sequence[int]) -> bytes:
    """The body of an answer with items: for each its status, and its length as it lies in the payload."""
    count = len(statuses)
    return struct.pack(f"<{count}B{count}I", *statuses, *sizes)


def unpack_items(frame: Frame, count: int, limit_bytes: int) -> tuple[Sequence[int], Sequence[int]]:
    """Statuses and lengths of the items that were asked for. The given ones make up the payload exactly."""
    header = frame.header
    if header.count != count or len(frame.body) != 5 * count or header.payload_bytes > limit_bytes:
        raise FrameError("not the answer to what was asked")
    found = struct.unpack(f"<{count}B{count}I", frame.body)
    statuses, sizes = found[:count], found[count:]
    if any(status > Status.LATER for status in statuses):
        raise FrameError("an item has no such status")
    if header.payload_bytes != sum(size for status, size in zip(statuses, sizes, strict=True) if status == Status.GIVEN):
        raise FrameError("the items do not make up the payload")
    return statuses, sizes


@dataclass(frozen=True, slots=True)
class Held:
    """A piece of what a host holds: names in ascending order, all that there are from the first to the last of them."""

    generation: int
    """Changes with what the host holds. Pieces of several generations together may be wrong, as a directory may be."""
    names: Sequence[bytes]
    is_last: bool


def pack_which(known: int, after: bytes, limit: int) -> bytes:
    """The body that asks which items are held: those after a name, at most so many, nothing if the generation is known."""
    return _WHICH.pack(known, min(limit, NAMES_AT_ONCE), after)


def unpack_which(frame: Frame) -> tuple[int, bytes, int]:
    """The generation that is known to the asking side, the name after which to begin, and how many names at most."""
    if len(frame.body) != _WHICH.size or frame.header.count or frame.header.payload_bytes:
        raise FrameError("not a request for names")
    known, limit, after = _WHICH.unpack(frame.body)
    if not 0 < limit <= NAMES_AT_ONCE:
        raise FrameError("a request for names has no limit")
    return known, after, limit


def pack_held(held: Held) -> bytes:
    """The body that tells a piece of what is held."""
    return b"".join((_HELD.pack(held.generation, held.is_last), *held.names))


def unpack_held(frame: Frame, after: bytes, limit: int) -> Held:
    """A piece of what a host holds. Names go on where the last piece ended."""
    count, body = frame.header.count, frame.body
    if count > limit or len(body) != _HELD.size + count * NAME_BYTES or frame.header.payload_bytes:
        raise FrameError("not the names that were asked for")
    generation, is_last = _HELD.unpack_from(body)
    names = _names(body, _HELD.size, count)
    if is_last > 1 or any(low >= high for low, high in zip((after, *names), names, strict=False)):
        raise FrameError("names are not in order")
    if not names and not is_last:
        raise FrameError("a piece without names is not the last")
    return Held(generation, names, bool(is_last))


@dataclass(frozen=True, slots=True)
class Told:
    """What a host says of itself, unasked: names that it holds from now on, and names that have gone."""

    number: int
    """Of the host among those of the job, from 1 on; 0 if it has none."""
    held: Sequence[bytes]
    gone: Sequence[bytes]


def pack_told(told: Told) -> bytes:
    """The body of an unasked word."""
    return b"".join((_TOLD.pack(told.number, len(told.held)), *told.held, *told.gone))


def unpack_told(frame: Frame) -> Told:
    """What another host says of itself."""
    count, body = frame.header.count, frame.body
    if len(body) != _TOLD.size + count * NAME_BYTES or frame.header.payload_bytes:
        raise FrameError("not a list of names")
    number, held = _TOLD.unpack_from(body)
    if held > count:
        raise FrameError("more names are held than told")
    names = _names(body, _TOLD.size, count)
    return Told(number, names[:held], names[held:])


def _names(body: bytes, place: int, count: int) -> list[bytes]:
    return [body[begin : begin + NAME_BYTES] for begin in range(place, place + count * NAME_BYTES, NAME_BYTES)]
