"""What the server says to one guest: each request is answered before the next is read.

Rule: nothing waits for the guest while the store is being looked at. What the kernel takes at once is sent straight from
the store's memory; the rest is copied, and sent when the store is left.
"""

import threading
from collections.abc import Sequence
from functools import partial

from stoker.memory import Bytes
from stoker.wire import frames
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame, FrameError, Header, Held, Kind, Status
from stoker.wire.items import Items

ANSWER_BYTES = 16 << 20
"""An answer is not longer than this, unless it has one item alone."""
COPIES_BYTES = 2 * frames.PAYLOAD_LIMIT
"""All that the guests of a server have not taken yet. There is always room for the longest item once others are done."""
_KEPT_BYTES = 4 << 20


class Counts:
    """What all conversations of a server did, and how much they hold. Shared by their threads."""

    def __init__(self, copies_bytes: int = COPIES_BYTES) -> None:
        self.lock = threading.Lock()
        self.requests = self.given = self.absent = self.sent_bytes = 0
        self._free_bytes = copies_bytes

    def answered(self, given: int = 0, absent: int = 0, sent_bytes: int = 0) -> None:
        """Count one request."""
        with self.lock:
            self.requests += 1
            self.given += given
            self.absent += absent
            self.sent_bytes += sent_bytes

    def reserve(self, size: int) -> bool:
        """Whether a copy of this size may be made. If so, `release` has to follow."""
        with self.lock:
            if size > self._free_bytes:
                return False
            self._free_bytes -= size
            return True

    def release(self, size: int) -> None:
        """Give room back."""
        with self.lock:
            self._free_bytes += size


class Conversation:
    """Answers one guest, in the thread that calls `run`."""

    def __init__(self, channel: Channel, items: Items, counts: Counts) -> None:
        self._channel = channel
        self._items = items
        self._counts = counts
        self._kept = bytearray()
        self._left = memoryview(b"")
        self._reserved = 0
        self._is_begun = False
        """Whether a part of the answer to the last request may be on its way."""

    def run(self) -> None:
        """Answer until the guest ends. Raises FrameError and OSError."""
        while (frame := self._channel.receive()) is not None:
            match frame.header.kind:
                case Kind.GET:
                    self._give_items(frame)
                case Kind.WHICH:
                    self._give_names(frame)
                case Kind.TOLD:
                    self._items.told(self._channel.name, frames.unpack_told(frame))
                    self._counts.answered()
                case Kind.PING:
                    if frame.body or frame.header.count or frame.header.payload_bytes:
                        raise FrameError("not a ping")
                    self._answer(frame, Kind.PONG)
                case _:
                    raise FrameError("a kind of request that is not known")

    def _answer(self, frame: Frame, kind: Kind, count: int = 0, body: Bytes = b"") -> None:
        header = Header(kind, frame.header.number, count, len(body), 0)
        self._channel.stream.send(self._channel.head(header, body))
        self._counts.answered()

    def _give_names(self, frame: Frame) -> None:
        wanted = frames.unpack_which(frame)
        try:
            held = self._items.which(*wanted)
        except OSError:
            held = Held(0, (), True)  # the store has gone
        self._answer(frame, Kind.HELD, len(held.names), frames.pack_held(held))

    def _give_items(self, frame: Frame) -> None:
        keys, limit_bytes = frames.unpack_get(frame)
        send = partial(self._send_items, frame.header.number, limit_bytes)
        self._is_begun = False
        try:
            try:
                self._items.visit(keys, send)
            except OSError:
                if self._is_begun:
                    raise
                send([None] * len(keys))  # the store has gone
            if self._left:
                self._channel.stream.send(self._left)
        finally:
            self._left = memoryview(b"")
            self._counts.release(self._reserved)
            self._reserved = 0

    def _send_items(self, number: int, limit_bytes: int, found: Sequence[Bytes | None]) -> None:
        """Send what goes out at once, and copy the rest: the items are the store's, and gone when this returns."""
        statuses, sizes, parts = self._choose(found, limit_bytes)
        total = sum(map(len, parts))
        body = frames.pack_items(statuses, sizes)
        self._is_begun = True
        head = self._channel.head(Header(Kind.ITEMS, number, len(found), len(body), total), body)
        parts.insert(0, head)
        self._counts.answered(statuses.count(Status.GIVEN), statuses.count(Status.ABSENT), total)
        self._keep(parts, self._channel.stream.send_now(parts))

    def _choose(self, found: Sequence[Bytes | None], limit_bytes: int) -> tuple[list[Status], list[int], list[Bytes]]:
        room = min(limit_bytes, ANSWER_BYTES)
        statuses: list[Status] = []
        sizes: list[int] = []
        parts: list[Bytes] = []
        total = 0
        for item in found:
            size = 0 if item is None else len(item)
            if item is None or size > frames.PAYLOAD_LIMIT:
                statuses.append(Status.ABSENT)
                sizes.append(0)
                continue
            fits = total + size <= room or (not parts and size <= limit_bytes)
            if fits and self._counts.reserve(size):
                self._reserved += size
                statuses.append(Status.GIVEN)
                parts.append(item)
                total += size
            else:
                statuses.append(Status.LATER)
            sizes.append(size)
        return statuses, sizes, parts

    def _keep(self, parts: list[Bytes], sent: int) -> None:
        left = sum(map(len, parts)) - sent
        room = self._room(left)
        place = 0
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
                continue
            rest = memoryview(part)[sent:]
            room[place : place + len(rest)] = rest
            place += len(rest)
            sent = 0
        self._left = room

    def _room(self, size: int) -> memoryview:
        """Memory for a copy. As much as most answers need is kept: new pages cost more than the copy."""
        if size > _KEPT_BYTES:
            return memoryview(bytearray(size))
        if size > len(self._kept):
            self._kept = bytearray(size)
        return memoryview(self._kept)[:size]
