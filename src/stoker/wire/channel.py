"""One connection between hosts that trust each other: frames in, frames out.

Rule: each frame has a MAC, keyed for its direction, over its number on this connection, header and body. So none can be
changed, repeated, left out or sent back. One thread sends and one receives at a time; callers see to that.
"""

import hashlib
import hmac
import time

from stoker.memory import Bytes
from stoker.wire.frames import HEADER_BYTES, Frame, FrameError, Header, unpack_header
from stoker.wire.handshake import Session
from stoker.wire.streams import Stream, fill

_MAC_BYTES = 16
_PIECE_BYTES = 1 << 18
"""Of what is long, the time is noted whenever so much has come."""


class Channel:
    """A stream after the handshake."""

    def __init__(self, stream: Stream, session: Session) -> None:
        self.stream = stream
        self.name = session.name
        """The other side's."""
        self._sending, self._receiving = session.sending_key, session.receiving_key
        self._sent = self._received = 0
        self.heard_at = time.monotonic()
        """When something came from the other side."""

    def head(self, header: Header, body: Bytes) -> bytes:
        """The next frame to send, but for its payload. It has to be sent before the next is made."""
        content = b"".join((header.pack(), body))
        head = content + _mac(self._sending, self._sent, content)
        self._sent += 1
        return head

    def receive(self) -> Frame | None:
        """The next frame, without its payload. None: the other side has ended. Raises FrameError and OSError."""
        content = bytearray(HEADER_BYTES)
        if not fill(self.stream, memoryview(content)):
            return None
        self.heard_at = time.monotonic()
        header = unpack_header(content)
        rest = bytearray(header.body_bytes + _MAC_BYTES)
        self.fill(memoryview(rest))
        body = bytes(rest[:-_MAC_BYTES])
        if not hmac.compare_digest(_mac(self._receiving, self._received, content + body), bytes(rest[-_MAC_BYTES:])):
            raise FrameError("a frame is not from the other side, or not the next one")
        self._received += 1
        return Frame(header, body)

    def fill(self, room: memoryview) -> None:
        """Receive exactly as many bytes as there is room for. Raises OSError if there are fewer."""
        for place in range(0, len(room), _PIECE_BYTES):
            if not fill(self.stream, room[place : place + _PIECE_BYTES]):
                raise ConnectionResetError("the connection ended within a frame")
            self.heard_at = time.monotonic()


def _mac(key: bytes, number: int, content: Bytes) -> bytes:
    return hashlib.blake2b(content, key=key, salt=number.to_bytes(16, "little"), digest_size=_MAC_BYTES).digest()
