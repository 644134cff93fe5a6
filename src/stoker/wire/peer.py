"""Another host, as this one asks it.

Rule: nothing here raises because of the other host, or waits for it beyond a deadline: what it does not give in time is
None in the answer, and is read elsewhere. Only `greet`, which a start may call, says what is wrong.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stoker import checksum
from stoker.wire import frames, handshake
from stoker.wire.answers import Buffers, ItemsAnswer, nothing
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame, Held, Kind, Told
from stoker.wire.link import Asked, Read, reader_of_items
from stoker.wire.links import Links, read_pong
from stoker.wire.tls import Tls

DEADLINE_S = 1.0
UNDER_WAY = 8
ANSWER_BYTES = 16 << 20
_TOLD_AT_ONCE = 4096
_NO_NAME = bytes(frames.NAME_BYTES)


@dataclass(frozen=True, slots=True)
class PeerStats:
    """What came from a peer."""

    links: int
    is_suspect: bool
    trouble: str
    """Why there is no connection, or why the last one ended."""
    late: int
    """Deadlines that were missed."""
    connected: int
    """How often a connection was made."""
    lost: int
    """How often one ended: the other side ended it, sent something else than the answers, or was silent for too long."""
    requests: int
    given: int
    absent: int
    damaged: int
    """Items with wrong bytes, or those of another item."""
    received_bytes: int


class Request:
    """Items that a peer has been asked for."""

    def __init__(self, peer: "Peer", asked: Asked) -> None:
        self._peer = peer
        self._asked = asked

    def answer(self) -> ItemsAnswer:
        """What the peer has of them, at the deadline at the latest. To be called once."""
        found: ItemsAnswer = self._peer._result(self._asked) or nothing(self._asked.count)
        self._peer._count(found)
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
        self.connections = connections
        self.deadline_s = deadline_s
        self._buffers = Buffers(2 * connections * under_way * (1 << 20))
        self._lock = threading.Lock()
        self._requests = self._given = self._absent = self._damaged = self._bytes = 0
        context = tls.context(is_server=False) if tls is not None else None
        self._links = Links(address, secret, self.name, connections, under_way, deadline_s, context)

    @property
    def is_usable(self) -> bool:
        """Whether it is connected and not suspect."""
        return self._links.is_usable

    @property
    def other_name(self) -> bytes | None:
        """The name of the process at the other end, if it is connected. A new name: it has started again."""
        return self._links.name

    def greet(self, deadline_s: float | None = None) -> None:
        """Wait until it can be used. Raises ConfigError if secrets or versions differ, OSError if it cannot be reached."""
        self._links.greet(self.deadline_s if deadline_s is None else deadline_s)

    def ask(self, keys: Sequence[bytes], deadline_s: float | None = None, limit_bytes: int = ANSWER_BYTES) -> Request:
        """Ask for items, without waiting for them. What does not fit into the limit is not sent, see `Answer.later`."""
        body = frames.pack_get(keys, limit_bytes)
        return Request(
            self, self._ask(Kind.GET, len(keys), body, reader_of_items(keys, limit_bytes, self._buffers), deadline_s)
        )

    def get(self, keys: Sequence[bytes], deadline_s: float | None = None, limit_bytes: int = ANSWER_BYTES) -> ItemsAnswer:
        """Ask for items, and wait for them until the deadline."""
        return self.ask(keys, deadline_s, limit_bytes).answer()

    def which(
        self, known: int = 0, after: bytes = _NO_NAME, limit: int = frames.NAMES_AT_ONCE, deadline_s: float | None = None
    ) -> Held | None:
        """One piece of the names that it holds; None if it does not answer. See `Held`."""

        def read(frame: Frame, _: Channel) -> Held:
            return frames.unpack_held(frame, after, limit)

        found: Held | None = self._result(
            self._ask(Kind.WHICH, 0, frames.pack_which(known, after, limit), read, deadline_s)
        )
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
            if not self._links.tell(Kind.TOLD, len(piece), frames.pack_told(Told(told.number, held, gone))):
                return False
            if place + _TOLD_AT_ONCE < len(names) and not self.ping():  # one piece is on its way at a time
                return False
        return True

    def ping(self, deadline_s: float | None = None) -> bool:
        """Whether it answers."""
        return bool(self._result(self._ask(Kind.PING, 0, b"", read_pong, deadline_s)))

    def _ask(self, kind: Kind, count: int, body: bytes, read: Read, deadline_s: float | None) -> Asked:
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        asked = Asked(kind, count, body, read, limit_s, self._links.heard_at)
        self._links.ask(asked)
        return asked

    def _result(self, asked: Asked) -> Any:
        """What came, at the deadline at the latest. If that is missed, nobody asks this peer for a while."""
        if not asked.wait():
            self._links.suspect()
        return asked.result

    def _count(self, answer: ItemsAnswer) -> None:
        given = [len(item) for item in answer.sealed if item is not None]
        with self._lock:
            self._requests += 1
            self._given += len(given)
            self._absent += len(answer.sealed) - len(given)
            self._damaged += answer.damaged
            self._bytes += sum(given)

    def stats(self) -> PeerStats:
        """What came from it so far."""
        with self._lock:
            counts = self._requests, self._given, self._absent, self._damaged, self._bytes
        return PeerStats(*self._links.state(), *counts)

    def close(self) -> None:
        """End the connections. Those who wait get nothing."""
        self._links.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
