"""What the relay of a trainer's host and a remote worker say to each other, in frames of the wire.

    worker                                relay
    JOIN    versions of what matters  ->
                                      <-  DUTY     the pickled duty
                                      <-  REFUSED  why, in words
                                      <-  WORK     which part of a work, and the work, marshalled
    OPEN    a path                    ->           as often as that part needs it
                                      <-  FILE     whether it is given, and its bytes
    MADE    what was made, the slot   ->
    FAILED  DRAWS, or nothing         ->           it could not be made there; the trainer's host makes it
                                      <-  WORK     ...

Rule: a payload that is going to be unpickled is covered by a digest in the body, which the frame's MAC covers. Other
payloads are numbers, and have a checksum.
"""

import enum
import hashlib
import marshal
from typing import Any

from stoker.checksum import checksum
from stoker.memory import Bytes
from stoker.wire.channel import Channel
from stoker.wire.frames import PAYLOAD_LIMIT, Frame, FrameError, Header

_SUM = 8
DRAWS = b"draws"
"""Why something was not made: there is no seed, and it would have drawn."""


class Word(enum.IntEnum):
    """What a frame says. The numbers are kinds of the wire."""

    JOIN = 16
    DUTY = 17
    REFUSED = 18
    READY = 22
    WORK = 19
    MADE = 20
    FAILED = 21
    OPEN = 23
    FILE = 24


_LONG = frozenset({Word.DUTY, Word.MADE, Word.FILE})
"""Only these have a payload."""


def send(channel: Channel, word: Word, body: Bytes = b"", payload: Bytes | None = None) -> None:
    """Send a frame. Raises OSError."""
    size = 0 if payload is None else len(payload)
    channel.stream.send(channel.head(Header(word, 0, 0, len(body), size), body))
    if payload is not None and size:
        channel.stream.send(payload)


def receive(channel: Channel, *words: Word) -> Frame | None:
    """The next frame, but for its payload. None: the other side has ended. Raises FrameError and OSError."""
    frame = channel.receive()
    if frame is None:
        return None
    if frame.header.kind not in words or (frame.header.payload_bytes and frame.header.kind not in _LONG):
        raise FrameError(f"not what is due: {', '.join(word.name for word in words)}")
    return frame


def digest(payload: Bytes) -> bytes:
    """Of what is going to be unpickled."""
    return hashlib.blake2b(payload, digest_size=32).digest()


def fits(size: int) -> bool:
    """Whether a payload is not too long for a frame."""
    return size <= PAYLOAD_LIMIT


def pack_work(part: int, work: bytes) -> bytes:
    """The body of WORK."""
    return bytes([part]) + work


def unpack_work(frame: Frame) -> tuple[int, bytes]:
    """The number of the part, and the work."""
    if not frame.body:
        raise FrameError("not a work")
    return frame.body[0], frame.body[1:]


def pack_file(content: Bytes | None) -> bytes:
    """The body of FILE: a sum of the file's bytes, or nothing if it is not given."""
    return b"" if content is None else checksum(content).to_bytes(_SUM, "little")


def is_given(frame: Frame, content: Bytes) -> bool:
    """Whether a file is given. Raises FrameError if its bytes are not those that were sent."""
    if frame.body and checksum(content).to_bytes(_SUM, "little") != frame.body:
        raise FrameError("a file was damaged on its way")
    return bool(frame.body)


def pack_made(made: tuple[Any, ...], payload: Bytes, *, is_pickled: bool) -> bytes:
    """The body of MADE: a sum of the payload, and the fields."""
    total = digest(payload) if is_pickled else checksum(payload).to_bytes(_SUM, "little")
    return marshal.dumps((total, made))


def unpack_made(frame: Frame) -> tuple[bytes, tuple[Any, ...]]:
    """The payload's sum, and the fields. The frame's MAC has been checked: the other side is one of ours."""
    try:
        total, made = marshal.loads(frame.body)
    except (ValueError, EOFError, TypeError) as error:
        raise FrameError("not what was made") from error
    if type(total) is not bytes or type(made) is not tuple:
        raise FrameError("not what was made")
    return total, made


def is_whole(payload: Bytes, total: bytes, *, is_pickled: bool) -> bool:
    """Whether a payload is as it was sent."""
    return total == (digest(payload) if is_pickled else checksum(payload).to_bytes(_SUM, "little"))
