"""What a training process says to the keeper: one packet each, of plain numbers or JSON, never pickled.

LOADER   a loader comes: JSON, and descriptors of its memory and its table
QUEUED   a batch is ordered from workers: which samples it has, how many works are taken by now
EPOCH    an epoch begins, of which all hosts know the order
OVER     all that is queued is taken, or nobody wants it any more; how many works were taken
CLOSED   a loader goes
ASKED    a worker wants an item of a cache: key, folder of the cache, path of the file
ANSWERED the keeper gives it, as a descriptor, and says where it came from; or it gives nothing
MET      other hosts have been found: JSON
"""

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOADER, QUEUED, OVER, CLOSED, ASKED, ANSWERED, MET, EPOCH = range(8)
_HEAD = struct.Struct("<B3xIQQd")  # kind, loader, number of the work, works taken, seconds of waiting so far
_MOST = 1 << 18
_MOST_DESCRIPTORS = 4
_DESCRIPTORS = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
_QUIETLY = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

Indices = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Said:
    """A message as the keeper gets it."""

    kind: int
    loader: int
    number: int
    taken: int
    waited_s: float
    content: bytes
    descriptors: tuple[int, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON of a message. Raises ValueError."""
        found = json.loads(self.content)
        if not isinstance(found, dict):
            raise ValueError("a message is not an object")
        return found

    def indices(self) -> Indices:
        """The samples of a batch."""
        return np.frombuffer(self.content, np.uint32)


def send(
    line: socket.socket,
    kind: int,
    loader: int,
    number: int = 0,
    taken: int = 0,
    waited_s: float = 0.0,
    content: bytes = b"",
    descriptors: Sequence[int] = (),
) -> None:
    """Say something, without waiting. Raises BlockingIOError if the line is full, and another OSError if it is gone."""
    packet = _HEAD.pack(kind, loader, number, taken, waited_s) + content
    if descriptors:
        socket.send_fds(line, [packet], list(descriptors), _QUIETLY)
    else:
        line.send(packet, _QUIETLY)


def introduce(line: socket.socket, loader: int, document: dict[str, Any], descriptors: list[int]) -> None:
    """Tell of a loader, and hand over its memory."""
    head = _HEAD.pack(LOADER, loader, 0, 0, 0.0)
    socket.send_fds(line, [head, json.dumps(document).encode()], descriptors, _QUIETLY)


def receive(line: socket.socket) -> Said | None:
    """The next message; None at the end of the line. Raises BlockingIOError if there is none, ValueError if it is none."""
    content, ancillary, _, _ = line.recvmsg(_MOST, _DESCRIPTORS, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found = array.array("i")
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
            descriptors += found
    if not content:
        return None
    if len(content) < _HEAD.size:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError("a message without a head")
    kind, loader, number, taken, waited_s = _HEAD.unpack_from(content)
    return Said(kind, loader, number, taken, waited_s, content[_HEAD.size :], tuple(descriptors))
