"""The connections to one host: made, watched and made again by a thread of their own.

                   an answer is late
      used   ------------------------->  suspect     asked nothing, delays nobody
        ^                                   |
        +--- it answers a ping, in time ----+        tried again in the background, after pauses that grow

Rule: a deadline decides where a read goes, never who is dead. Nobody waits for a connection, or for a suspect host. As many
requests are under way as are answered soon: over a slow link a long queue would make all of them late.
"""

import ssl
import threading
import time

from stoker.errors import ConfigError
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame, FrameError, Kind
from stoker.wire.link import Asked, Link, connect

_FIRST_AWAY_S, _LONGEST_AWAY_S = 0.02, 1.0
"""Pauses when there is no connection: an attempt delays nobody. Hosts of a job start at slightly different moments."""
_FIRST_LATE_S = 0.1
_LONGEST_LATE_S = 5.0
"""The longest pause for a host that is connected but late, again and again: each time costs a read its deadline."""
_FIRST_PLACES = 2
_SOON_S, _LATE_PART = 0.25, 0.5
"""Requests that are answered so soon may be more. They are fewer after an answer that took half of the limit."""
_FEWER = 0.7
_GOOD_S = 10.0
"""Who has not been late for so long is tried again at once."""


class Links:
    """Some connections to one address. Used by any threads."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        name: bytes,
        connections: int,
        under_way: int,
        deadline_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._address, self._secret, self._name, self._tls = address, secret, name, tls
        self._connections, self._most_busy, self._deadline_s = connections, connections * under_way, deadline_s
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._changed = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        """For those who wait because too many requests are under way."""
        self._links: list[Link] = []
        self._busy = 0
        self._places = float(min(_FIRST_PLACES, self._most_busy))
        """How many requests may be under way now."""
        self._fewer_at = 0.0
        """When they became fewer. Answers to what was sent before say nothing new."""
        self._is_suspect = self._is_closed = False
        self._trouble: Exception | None = None
        self._late = self._connected = self._lost = 0
        self._tender = threading.Thread(target=self._tend, name="stoker-wire-links", daemon=True)
        self._tender.start()

    @property
    def is_usable(self) -> bool:
        """Whether there is a connection, and the host is not suspect."""
        return bool(self._links) and not self._is_suspect

    @property
    def name(self) -> bytes | None:
        """The name of the process at the other end, if there is a connection."""
        links = self._links
        return links[0].name if links else None

    def heard_at(self) -> float:
        """When something came from the host."""
        return max((link.heard_at for link in self._links), default=0.0)

    def greet(self, limit_s: float) -> None:
        """Wait until they can be used. Raises ConfigError if secrets or versions differ, OSError at the limit."""
        with self._lock:
            self._changed.wait_for(lambda: self.is_usable or isinstance(self._trouble, ConfigError), limit_s)
            if self.is_usable:
                return
            if isinstance(self._trouble, ConfigError):
                raise self._trouble
            why = self._trouble or "it does not answer"
        raise ConnectionError(f"{self._address[0]}:{self._address[1]} cannot be reached: {why}")

    def ask(self, asked: Asked) -> None:
        """Send a request, if need be when others are answered. It is settled at once if the host cannot be used."""
        with self._lock:
            while not self._answered.wait_for(lambda: not self.is_usable or self._busy < int(self._places), asked.left_s):
                if not asked.left_s:
                    return  # the host is silent
            link = self._choose()
            self._busy += 1
            asked.sent_at = time.monotonic()
        if link is None or not link.ask(asked):
            self._on_answer(asked)
            asked.done.set()

    def tell(self, kind: Kind, count: int, body: bytes) -> bool:
        """Send what has no answer. False: it was not sent."""
        with self._lock:
            link = self._choose()
        return link is not None and link.tell(kind, count, body)

    def _choose(self) -> Link | None:
        """The link with the fewest requests under way. Called with the lock held."""
        return None if self._is_suspect else min(self._links, key=lambda link: link.under_way, default=None)

    def suspect(self) -> None:
        """An answer was late: nobody waits for this host any more, until it is back."""
        with self._lock:
            self._late += 1
            self._places = max(1.0, _FEWER * self._places)
            if self._is_suspect:
                return
            self._is_suspect = True
            links = list(self._links)
            self._notify()
        for link in links:
            link.give_up()

    def _on_answer(self, asked: Asked) -> None:
        if asked.has_place:
            took_s = time.monotonic() - (asked.sent_at or asked.made_at)
            late_s = _LATE_PART * asked.limit_s
            with self._lock:
                if took_s < _SOON_S and asked.result is not None:
                    self._places = min(float(self._most_busy), self._places + 1)
                elif took_s > late_s and (asked.sent_at or 0.0) > self._fewer_at:
                    self._places = max(1.0, min(_FEWER, late_s / took_s) * min(self._places, self._busy))
                    self._fewer_at = time.monotonic()
                self._busy -= 1
                self._answered.notify(2)  # there may be a place more than before

    def _on_end(self, link: Link, left: list[Asked], reason: str) -> None:
        for asked in left:
            self._on_answer(asked)
        with self._lock:
            self._links = [other for other in self._links if other is not link]
            self._lost += not self._is_closed
            self._trouble = ConnectionError(reason)
            self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        self._answered.notify_all()

    def _tend(self) -> None:
        """Keep the connections, in a thread."""
        pause_s, good_since = 0.0, float("inf")
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._is_closed or self._is_suspect or len(self._links) < self._connections)
                is_late = self._is_suspect and bool(self._links)
                if time.monotonic() - good_since > (_GOOD_S if is_late else _FIRST_LATE_S):
                    pause_s = 0.0
                self._changed.wait_for(lambda: self._is_closed, pause_s)
                if self._is_closed:
                    return
                links = list(self._links)
            first_s, longest_s = (_FIRST_LATE_S, _LONGEST_LATE_S) if is_late else (_FIRST_AWAY_S, _LONGEST_AWAY_S)
            pause_s = min(max(first_s, 2 * pause_s), longest_s)
            trouble = self._mend(links)
            good_since = float("inf") if trouble else time.monotonic()
            with self._lock:
                self._trouble = trouble
                if self._links:
                    self._is_suspect = False
                self._changed.notify_all()

    def _mend(self, links: list[Link]) -> Exception | None:
        """Part with links that do not answer, and make those that are missing. Returns what is in the way."""
        pings = [
            Asked(Kind.PING, 0, b"", read_pong, self._deadline_s, lambda link=link: link.heard_at, has_place=False)  # type: ignore[misc]
            for link in links
        ]
        for link, ping in zip(links, pings, strict=True):
            if not link.ask(ping):
                ping.done.set()
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
        deadline = time.monotonic() + self._deadline_s
        channel = connect(self._address, self._secret, self._name, deadline, self._deadline_s, self._tls)
        with self._lock:
            if self._is_closed:
                channel.stream.close()
                raise ConnectionAbortedError("closed meanwhile")
            self._links.append(Link(channel, self._on_answer, self._on_end))
            self._connected += 1

    def state(self) -> tuple[int, bool, str, int, int, int]:
        """How many there are; whether the host is suspect; what is wrong; answers too late; links made; links lost."""
        with self._lock:
            trouble = str(self._trouble or "")
            return len(self._links), self._is_suspect, trouble, self._late, self._connected, self._lost

    def close(self) -> None:
        """End them. Those who wait get nothing."""
        with self._lock:
            self._is_closed = True
            links = list(self._links)
            self._notify()
        for link in links:
            link.end()
            link.join()
        self._tender.join()


def read_pong(frame: Frame, _: Channel) -> bool:
    """Read the answer to a ping."""
    if frame.body or frame.header.count or frame.header.payload_bytes:
        raise FrameError("not an answer to a ping")
    return True
