"""Bytes over a connection, plain or by TLS, as the rest of the wire needs them.

Rule: one thread may receive while another sends. OpenSSL does not allow that on one connection, so a TLS stream never
waits inside it: it waits for the socket, and holds a lock for each step.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from stoker.memory import Bytes

_IDLE_S, _EVERY_S, _TIMES = 30, 10, 3
_TIMEVAL = struct.Struct("@ll")
_FAIR = (b"cubic", b"reno")
"""Ways to share a link; the last may be used by everybody."""


class Stream(Protocol):
    """A connection. With a deadline, a wait beyond it raises TimeoutError."""

    deadline: float | None

    def receive(self, room: memoryview) -> int:
        """Receive some bytes, or wait for them. 0: the other side has ended. Raises OSError."""

    def send(self, content: Bytes) -> None:
        """Send all of it. Raises OSError, also if the other side takes nothing for long."""

    def send_now(self, parts: Sequence[Bytes]) -> int:
        """Send what can be sent without waiting. Returns how many bytes."""

    def end(self) -> None:
        """End it, from any thread. A thread that waits for it sees the end."""

    def close(self) -> None:
        """Close it, when no thread uses it any more."""


class PlainStream:
    """A TCP connection as it is."""

    def __init__(self, sock: socket.socket, patience_s: float, deadline: float | None = None) -> None:
        _tune(sock, patience_s)
        self._sock = sock
        self._deadline = deadline
        self.deadline = deadline

    @property
    def deadline(self) -> float | None:
        """Until when the other side is waited for."""
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._sock.settimeout(None if deadline is None else _left(deadline))

    def receive(self, room: memoryview) -> int:
        """Receive bytes; all that there is room for, unless there is a deadline."""
        if self._deadline is not None:
            self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(room, 0, socket.MSG_WAITALL)

    def send(self, content: Bytes) -> None:
        """Send all of it."""
        self._sock.sendall(content)

    def send_now(self, parts: Sequence[Bytes]) -> int:
        """Send what the kernel takes at once."""
        try:
            return self._sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def end(self) -> None:
        """End it, from any thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._sock.close()


class TlsStream:
    """A TCP connection with TLS. The certificates are exchanged with the first bytes."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        is_server: bool,
        patience_s: float,
        deadline: float | None = None,
    ) -> None:
        _tune(sock, patience_s)
        self.deadline = deadline
        self._patience_s = patience_s
        self._lock = threading.Lock()
        sock.setblocking(False)
        self._sock = context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)

    def receive(self, room: memoryview) -> int:
        """Receive some bytes."""
        while True:
            with self._lock:
                try:
                    return self._sock.recv_into(room)
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
                except ssl.SSLEOFError:
                    return 0
            self._wait(events, self.deadline)

    def send(self, content: Bytes) -> None:
        """Send all of it."""
        rest = memoryview(content).cast("B")
        while rest:
            with self._lock:
                try:
                    rest = rest[self._sock.send(rest) :]
                    continue
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
            self._wait(events, self.deadline or time.monotonic() + self._patience_s)

    def send_now(self, parts: Sequence[Bytes]) -> int:
        """Nothing: what TLS has begun to send, it has to go on with."""
        return 0

    def _wait(self, events: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        if not poll.poll(None if deadline is None else _left(deadline) * 1000):
            raise TimeoutError("the other side does not answer")

    def end(self) -> None:
        """End it, from any thread."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # SSLSocket's own changes what other threads use

    def close(self) -> None:
        """Close it."""
        self._sock.close()


def exactly(stream: Stream, size: int) -> bytes:
    """So many bytes. Raises OSError if there are fewer."""
    content = bytearray(size)
    if not fill(stream, memoryview(content)):
        raise ConnectionResetError("the connection has ended")
    return bytes(content)


def fill(stream: Stream, room: memoryview) -> bool:
    """Receive exactly as many bytes as there is room for. False: the other side has ended before the first."""
    place, size = 0, len(room)
    while place < size:
        received = stream.receive(room[place:])
        if not received:
            if not place:
                return False
            raise ConnectionResetError("the connection ended within a message")
        place += received
    return True


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side does not answer")
    return left


def _tune(sock: socket.socket, patience_s: float) -> None:
    """Set what all connections have. A send that makes no progress for so long fails."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
        _share_fairly(sock)
    seconds = int(patience_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(seconds, int((patience_s - seconds) * 1e6)))


def _share_fairly(sock: socket.socket) -> None:
    """Replace BBR, which gives some connections of a link next to nothing for a second. Their host waits meanwhile."""
    if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr"):
        return
    for way in _FAIR:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, way)
            return
