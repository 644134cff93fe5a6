"""Another host, as this one asks it.

                   an answer is late
      used   ------------------------->  suspect     asked nothing, delays nobody
        ^                                   |
        +--- it answers a ping, in time ----+        tried again in the background, after pauses that grow

Rule: a deadline decides where a read goes, never who is dead. Nothing here raises because of the other host: what it does
not give in time is None in the answer. Only `greet`, which a start may call, says what is wrong.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stoker import checksum
from stoker.errors import ConfigError
from stoker.wire import frames, handshake
from stoker.wire.answers import Answer, Buffers, nothing
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame, FrameError, Held, Kind, Told
from stoker.wire.link import Asked, Link, Read, connect, reader_of_items
from stoker.wire.tls import Tls

DEADLINE_S = 1.0
UNDER_WAY = 8
ANSWER_BYTES = 16 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_GOOD_S = 10.0
"""Who has answered well for so long is tried again at once when it fails."""
_TOLD_AT_ONCE = 4096
_NO_NAME = bytes(frames.NAME_BYTES)


@dataclass(frozen=True, slots=True)
class PeerStats:
    """What came from a peer. `late` counts deadlines that were missed, `damaged` items with wrong bytes."""

    links: int
    is_suspect: bool
    trouble: str
    """Why there is no connection, or why the last one ended."""
    requests: int
    given: int
    absent: int
    damaged: int
    late: int
    received_bytes: int
    connected: int
    """How often a connection was made."""


class Request:
    """Items that a peer has been asked for."""

    def __init__(self, peer: "Peer", asked: Asked) -> None:
        self._peer = peer
        self._asked = asked

    def answer(self) -> Answer:
        """What the peer has of them, at the deadline at the latest. To be called once."""
        if not self._asked.wait():
            self._peer._suspect()
        found: Answer = self._asked.result or nothing(self._asked.count)
        self._peer._count(found, self._asked.count)
        return found


class Peer:
    """A host that is asked for items, from any thread. Connections are made, and made again, in the background."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        *,
        name: bytes | None = None,
        connections: int = 1,
        deadline_s: float = DEADLINE_S,
        under_way: int = UNDER_WAY,
        tls: Tls | None = None,
    ) -> None:
        checksum.load()
        self.address = address
        self.name = name or handshake.fresh_name()
        self.deadline_s = deadline_s
        self._secret = secret
        self._connections = connections
        self._under_way = under_way
        self._tls = tls.context(is_server=False) if tls is not None else None
        self._buffers = Buffers(2 * connections * under_way * (1 << 20))
        self._places = threading.BoundedSemaphore(connections * under_way)
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._links: list[Link] = []
        self._is_suspect = self._is_closed = False
        self._trouble: Exception | None = None
        self._requests = self._given = self._absent = self._damaged = self._late = self._bytes = self._connected = 0
        self._tender = threading.Thread(target=self._tend, name="stoker-wire-peer", daemon=True)
        self._tender.start()

    @property
    def is_usable(self) -> bool:
        """Whether it is connected and not suspect."""
        return bool(self._links) and not self._is_suspect

    @property
    def other_name(self) -> bytes | None:
        """The name of the process at the other end, if it is connected. A new name: it has started again."""
        links = self._links
        return links[0].name if links else None

    def greet(self, deadline_s: float | None = None) -> None:
        """Wait until it can be used. Raises ConfigError if secrets or versions differ, OSError if it cannot be reached."""
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        with self._changed:
            self._changed.wait_for(lambda: self.is_usable or isinstance(self._trouble, ConfigError), limit_s)
            if self.is_usable:
                return
            if isinstance(self._trouble, ConfigError):
                raise self._trouble
            why = self._trouble or "it does not answer"
        raise ConnectionError(f"{self.address[0]}:{self.address[1]} cannot be reached: {why}")

    def ask(self, keys: Sequence[bytes], deadline_s: float | None = None, limit_bytes: int = ANSWER_BYTES) -> Request:
        """Ask for items, without waiting for them. What does not fit into the limit is not sent, see `Answer.later`."""
        body = frames.pack_get(keys, limit_bytes)
        return Request(
            self, self._ask(Kind.GET, len(keys), body, reader_of_items(keys, limit_bytes, self._buffers), deadline_s)
        )

    def get(self, keys: Sequence[bytes], deadline_s: float | None = None, limit_bytes: int = ANSWER_BYTES) -> Answer:
        """Ask for items, and wait for them until the deadline."""
        return self.ask(keys, deadline_s, limit_bytes).answer()

    def which(
        self, known: int = 0, after: bytes = _NO_NAME, limit: int = frames.NAMES_AT_ONCE, deadline_s: float | None = None
    ) -> Held | None:
        """One piece of the names that it holds; None if it does not answer. See `Held`."""

        def read(frame: Frame, _: Channel) -> Held:
            return frames.unpack_held(frame, after, limit)

        found: Held | None = self._wait(Kind.WHICH, frames.pack_which(known, after, limit), read, deadline_s)
        return found

    def names(self, known: int = 0, deadline_s: float | None = None) -> Iterator[Held]:
        """All that it holds, in pieces. If the last piece has not `is_last`, it has stopped to answer."""
        held = self.which(known, deadline_s=deadline_s)
        while held is not None:
            yield held
            if held.is_last:
                return
            held = self.which(0, held.names[-1], deadline_s=deadline_s)

    def tell(self, told: Told) -> bool:
        """Tell it what this host holds now, and what has gone. False: not all was sent. Nobody knows what arrives."""
        names = [(name, True) for name in told.held] + [(name, False) for name in told.gone]
        for place in range(0, len(names), _TOLD_AT_ONCE):
            piece = names[place : place + _TOLD_AT_ONCE]
            held, gone = [name for name, is_held in piece if is_held], [name for name, is_held in piece if not is_held]
            link = self._choose()
            if link is None or not link.tell(Kind.TOLD, len(piece), frames.pack_told(Told(told.generation, held, gone))):
                return False
        return True

    def ping(self, deadline_s: float | None = None) -> bool:
        """Whether it answers."""
        return bool(self._wait(Kind.PING, b"", _read_pong, deadline_s))

    def _wait(self, kind: Kind, body: bytes, read: Read, deadline_s: float | None) -> Any:
        asked = self._ask(kind, 0, body, read, deadline_s)
        if not asked.wait():
            self._suspect()
        return asked.result

    def _ask(self, kind: Kind, count: int, body: bytes, read: Read, deadline_s: float | None) -> Asked:
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        asked = Asked(kind, count, body, read, time.monotonic() + limit_s)
        if self.is_usable and self._places.acquire(timeout=limit_s):
            link = self._choose()
            if link is not None and link.ask(asked):
                return asked
            self._places.release()
        asked.done.set()
        return asked

    def _choose(self) -> Link | None:
        with self._changed:
            return None if self._is_suspect else min(self._links, key=lambda link: link.under_way, default=None)

    def _on_answer(self, asked: Asked) -> None:
        if asked.has_place:
            self._places.release()

    def _on_end(self, link: Link, left: list[Asked], reason: str) -> None:
        for asked in left:
            self._on_answer(asked)
        with self._changed:
            with contextlib.suppress(ValueError):
                self._links.remove(link)
                self._trouble = ConnectionError(reason)
            self._changed.notify_all()

    def _suspect(self) -> None:
        """An answer was late: nobody waits for this peer any more, until it is back."""
        with self._changed:
            self._late += 1
            if self._is_suspect:
                return
            self._is_suspect = True
            links = list(self._links)
            self._changed.notify_all()
        for link in links:
            link.give_up()

    def _count(self, answer: Answer, count: int) -> None:
        given = [len(item) for item in answer.sealed if item is not None]
        with self._changed:
            self._requests += 1
            self._given += len(given)
            self._absent += count - len(given)
            self._damaged += answer.damaged
            self._bytes += sum(given)

    def _tend(self) -> None:
        """Keep the connections, in the peer's own thread."""
        pause_s, good_since = 0.0, float("inf")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._is_suspect or len(self._links) < self._connections)
                if time.monotonic() - good_since > _GOOD_S:
                    pause_s = 0.0
                self._changed.wait_for(lambda: self._is_closed, pause_s)
                if self._is_closed:
                    return
                links = list(self._links)
            pause_s = min(max(_FIRST_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)
            trouble = self._mend(links)
            good_since = float("inf") if trouble else time.monotonic()
            with self._changed:
                self._trouble = trouble
                if self._links:
                    self._is_suspect = False
                self._changed.notify_all()

    def _mend(self, links: list[Link]) -> Exception | None:
        """Part with links that do not answer, and make those that are missing. Returns what is in the way."""
        deadline = time.monotonic() + self.deadline_s
        pings = [Asked(Kind.PING, 0, b"", _read_pong, deadline, has_place=False) for _ in links]
        for link, ping in zip(links, pings, strict=True):
            link.ask(ping)
        for link, ping in zip(links, pings, strict=True):
            if not ping.wait() or not ping.result:
                link.end()
                link.join()
        try:
            while len(self._links) < self._connections:
                self._connect()
        except (ConfigError, OSError) as error:
            return error
        return None

    def _connect(self) -> None:
        deadline = time.monotonic() + self.deadline_s
        channel = connect(self.address, self._secret, self.name, deadline, self.deadline_s, self._tls)
        with self._changed:
            if self._is_closed:
                channel.stream.close()
                raise ConnectionAbortedError("closed meanwhile")
            self._links.append(Link(channel, self._on_answer, self._on_end))
            self._connected += 1

    def stats(self) -> PeerStats:
        """What came from it so far."""
        with self._changed:
            return PeerStats(
                len(self._links),
                self._is_suspect,
                str(self._trouble or ""),
                self._requests,
                self._given,
                self._absent,
                self._damaged,
                self._late,
                self._bytes,
                self._connected,
            )

    def close(self) -> None:
        """End the connections. Whoever waits gets nothing."""
        with self._changed:
            self._is_closed = True
            links = list(self._links)
            self._changed.notify_all()
        for link in links:
            link.end()
            link.join()
        self._tender.join()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_pong(frame: Frame, _: Channel) -> bool:
    if frame.body or frame.header.count or frame.header.payload_bytes:
        raise FrameError("not an answer to a ping")
    return True
