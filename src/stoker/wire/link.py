"""The asking side of one connection: several requests under way, answers matched by their ids, in a thread of its own.

    asked --> answered
       \\--> given up (nobody waits any more; its answer is read and thrown away)

Rule: whatever is not exactly the answer to what was asked ends the link. Asking never waits for the other side. A host that
is asked for much over a slow link takes long, but is not silent: a request is late when nothing has come for its limit, or
when it was sent several times as long ago.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker import sealed
from stoker.errors import ConfigError
from stoker.wire import frames, handshake
from stoker.wire.answers import Buffers, ItemsAnswer
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame, FrameError, Header, Kind, Status
from stoker.wire.streams import PlainStream, Stream, TlsStream

_REQUESTS_BYTES = 1 << 19
"""What the kernel keeps of requests that the other side has not read. Asking never waits for room in it."""

_MOST_LIMITS = 3
"""A request is late after so many times its limit, even if the other side answers others meanwhile."""

Read = Callable[[Frame, Channel], Any]
"""Reads the answer to one request. Raises FrameError and OSError."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request under way. Its link settles it, once."""

    kind: Kind
    count: int
    body: bytes
    read: Read
    limit_s: float
    """It is late when nothing comes from the other side for so long."""
    heard_at: Callable[[], float]
    """When something came from the other side."""
    made_at: float = field(default_factory=time.monotonic)
    sent_at: float | None = None
    """None: it waits until others are answered."""
    has_place: bool = True
    """Whether it counts against the limit of requests under way."""
    result: Any = None
    """What `read` made of the answer; None if there is none."""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def deadline(self) -> float:
        """When it is late, if nothing comes until then."""
        if self.sent_at is None:
            return max(self.made_at, self.heard_at()) + self.limit_s
        return min(max(self.sent_at, self.heard_at()) + self.limit_s, self.sent_at + _MOST_LIMITS * self.limit_s)

    @property
    def left_s(self) -> float:
        """How long it is until the deadline; 0 after it."""
        return max(0.0, self.deadline - time.monotonic())

    def wait(self) -> bool:
        """Wait until it is settled. False: the deadline came first."""
        while not self.done.wait(self.left_s):
            if not self.left_s:
                return False
        return True


class Link:
    """A connection to a host.

    Its thread calls `on_answer` for each complete answer, and `on_end` when there will be no more, and for whom.
    """

    def __init__(
        self, channel: Channel, on_answer: Callable[[Asked], None], on_end: Callable[["Link", list[Asked], str], None]
    ) -> None:
        self.name = channel.name
        self._channel = channel
        self._on_answer, self._on_end = on_answer, on_end
        self._lock = threading.Lock()
        self._asked: dict[int, Asked] = {}
        self._number = 0
        self._has_ended = False
        self._thread = threading.Thread(target=self._receive, name="stoker-wire-link", daemon=True)
        self._thread.start()

    @property
    def heard_at(self) -> float:
        """When something came from the other side."""
        return self._channel.heard_at

    @property
    def under_way(self) -> int:
        """How many requests have no answer yet."""
        return len(self._asked)

    def ask(self, asked: Asked) -> bool:
        """Send a request. False: this link has ended before it."""
        with self._lock:
            if self._has_ended:
                return False
            self._number = (self._number + 1) & 0xFFFFFFFF
            self._asked[self._number] = asked
            self._send(Header(asked.kind, self._number, asked.count, len(asked.body), 0), asked.body)
            return True

    def tell(self, kind: Kind, count: int, body: bytes) -> bool:
        """Send what has no answer. False: this link has ended."""
        with self._lock:
            return not self._has_ended and self._send(Header(kind, 0, count, len(body), 0), body)

    def _send(self, header: Header, body: bytes) -> bool:
        head, stream = self._channel.head(header, body), self._channel.stream
        try:
            if isinstance(stream, TlsStream):
                stream.send(head)
                return True
            if stream.send_now((head,)) == len(head):
                return True
        except OSError:
            pass
        stream.end()  # it has not read its requests for long, or is gone
        return False

    def give_up(self) -> None:
        """Let nobody wait for requests under way. Their answers may still come, and are thrown away."""
        with self._lock:
            for asked in self._asked.values():
                asked.done.set()

    def _receive(self) -> None:
        reason = "it has ended the connection"
        try:
            while (frame := self._channel.receive()) is not None:
                self._take(frame)
        except (OSError, FrameError) as error:
            reason = str(error)
        finally:
            self._channel.stream.end()
            with self._lock:
                self._has_ended = True
                left = list(self._asked.values())
                self._asked.clear()
                self._channel.stream.close()
            for asked in left:
                asked.done.set()
            self._on_end(self, left, reason)

    def _take(self, frame: Frame) -> None:
        asked = self._asked.get(frame.header.number)
        if asked is None or frame.header.kind != asked.kind + 1:
            raise FrameError("an answer to nothing that was asked")
        result = asked.read(frame, self._channel)
        with self._lock:
            del self._asked[frame.header.number]
            is_wanted = not asked.done.is_set()
            if is_wanted:
                asked.result = result
                asked.done.set()
        is_damaged = isinstance(result, ItemsAnswer) and result.damaged
        if isinstance(result, ItemsAnswer) and not is_wanted:
            result.release()
        self._on_answer(asked)
        if is_damaged:
            raise FrameError("it sent items with wrong bytes")

    def end(self) -> None:
        """End it. Requests under way get no answer."""
        with self._lock:
            if not self._has_ended:
                self._channel.stream.end()

    def join(self) -> None:
        """Wait for its thread, after `end`."""
        self._thread.join()


def connect(
    address: tuple[str, int],
    secret: bytes,
    name: bytes,
    deadline: float,
    patience_s: float,
    tls: ssl.SSLContext | None = None,
) -> Channel:
    """Connect to a host, and find out whether it knows the secret. Raises ConfigError and OSError."""
    where = f"{address[0]}:{address[1]}"
    sock = socket.create_connection(address, max(0.001, deadline - time.monotonic()))
    stream: Stream
    if tls is None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUESTS_BYTES)
        stream = PlainStream(sock, patience_s, deadline)
    else:
        stream = TlsStream(sock, tls, False, patience_s, deadline)
    try:
        session = handshake.ask(secret, name, stream, where)
        stream.deadline = None
    except ssl.SSLError as error:
        stream.close()
        raise ConfigError(
            f"{where} cannot be used with TLS: is it on for both hosts, with certificates of the same authority? {error}"
        ) from error
    except BaseException:
        stream.close()
        raise
    return Channel(stream, session)


def reader_of_items(keys: Sequence[bytes], limit_bytes: int, buffers: Buffers) -> Read:
    """What reads the answer to a request for items."""

    def read(frame: Frame, channel: Channel) -> ItemsAnswer:
        statuses, sizes = frames.unpack_items(frame, len(keys), limit_bytes)
        buffer = buffers.take(frame.header.payload_bytes)
        room = memoryview(buffer)[: frame.header.payload_bytes]
        channel.fill(room)
        payloads: list[memoryview | None] = [None] * len(keys)
        items: list[memoryview | None] = [None] * len(keys)
        later, damaged, place = {}, 0, 0
        for position, (status, size) in enumerate(zip(statuses, sizes, strict=True)):
            if status == Status.GIVEN:
                item = room[place : place + size]
                place += size
                try:
                    payloads[position] = sealed.check(keys[position], item)
                    items[position] = item
                except sealed.ItemDamagedError:
                    damaged += 1
            elif status == Status.LATER:
                later[position] = size
        return ItemsAnswer(payloads, items, later, damaged, buffers, buffer)

    return read
