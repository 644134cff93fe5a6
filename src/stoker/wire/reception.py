"""The answering side of any conversation: lets those speak who know the secret.

    waiting room (few, with a deadline)  -- handshake -->  guests (a limited number), a thread each

Rule: nobody outside can make this process hold much, or keep others out. A connection that has not shown the secret waits
in a small room. When that is full, the one that has waited longest goes. A guest's next request is read when the last
answer is sent: who does not read is not served, and holds one answer.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from stoker import checksum
from stoker.errors import ConfigError
from stoker.wire import handshake
from stoker.wire.addresses import place_for_others
from stoker.wire.channel import Channel
from stoker.wire.frames import FrameError
from stoker.wire.streams import PlainStream, Stream, TlsStream
from stoker.wire.tls import Tls

WAITING = 64
HANDSHAKE_S = 10.0
GUESTS = 256
PATIENCE_S = 60.0
"""A guest that takes nothing of its answer for so long is let go. It may come again."""
_BACKLOG = 512


class Reception:
    """Listens at an address, from its creation until `close`. The port may be 0: see `address`."""

    def __init__(
        self,
        address: tuple[str, int],
        converse: Callable[[Channel], None],
        secret: bytes,
        *,
        name: bytes | None = None,
        guests: int = GUESTS,
        handshake_s: float = HANDSHAKE_S,
        patience_s: float = PATIENCE_S,
        tls: Tls | None = None,
    ) -> None:
        """`converse` is called with each guest, in a thread of its own. It may raise FrameError and OSError."""
        checksum.load()
        self.name = name or handshake.fresh_name()
        self._converse, self._secret = converse, secret
        self._most_guests, self._handshake_s, self._patience_s = guests, handshake_s, patience_s
        self._tls = tls.context(is_server=True) if tls is not None else None
        self._lock = threading.Lock()
        self._waiting: dict[Stream, float] = {}
        """Connections without a proof, oldest first, and when they have to go."""
        self._guests: set[Stream] = set()
        self._threads: set[threading.Thread] = set()
        self._refused = self._broken = 0
        self._listening = _listen(address)
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        self._waking, self._woken = socket.socketpair()
        self._door = threading.Thread(target=self._keep_door, name="stoker-wire-door", daemon=True)
        self._door.start()

    def _keep_door(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._send_away_late())]
                if self._woken in ready:
                    return
                if ready and not self._take_in():
                    self._send_away_oldest()

    def _take_in(self) -> bool:
        """Take in one connection. False: this process has no descriptor or thread left for it."""
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return True
        except OSError:
            return False
        stream = self._stream(sock)
        thread = threading.Thread(target=self._receive, args=(stream,), name="stoker-wire-guest", daemon=True)
        with self._lock:
            if len(self._waiting) >= WAITING:
                self._send_away(next(iter(self._waiting)))
            self._waiting[stream] = time.monotonic() + self._handshake_s
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._forget(stream, thread)
            return False
        return True

    def _stream(self, sock: socket.socket) -> Stream:
        if self._tls is None:
            return PlainStream(sock, self._patience_s)
        return TlsStream(sock, self._tls, True, self._patience_s)

    def _send_away_oldest(self) -> None:
        with self._lock:
            if self._waiting:
                self._send_away(next(iter(self._waiting)))
        time.sleep(0.01)  # its thread frees what it had

    def _send_away_late(self) -> float | None:
        """End connections whose deadline is over. Returns how long the next one has."""
        with self._lock:
            while self._waiting:
                stream, deadline = next(iter(self._waiting.items()))
                left = deadline - time.monotonic()
                if left > 0:
                    return left
                self._send_away(stream)
        return None

    def _send_away(self, stream: Stream) -> None:
        """Called with the lock held. The thread of this connection sees its end, and closes it."""
        del self._waiting[stream]
        stream.end()

    def _receive(self, stream: Stream) -> None:
        is_guest = False
        try:
            session = self._greet(stream)
            is_guest = True
            self._converse(Channel(stream, session))
        except (OSError, FrameError):
            with self._lock:
                if is_guest:
                    self._broken += 1
                else:
                    self._refused += 1
        finally:
            self._forget(stream, threading.current_thread())

    def _greet(self, stream: Stream) -> handshake.Session:

        def admit() -> bool:
            with self._lock:
                if stream not in self._waiting:
                    raise ConnectionAbortedError("it came too late")
                del self._waiting[stream]
                has_room = len(self._guests) < self._most_guests
                if has_room:
                    self._guests.add(stream)
                return has_room

        return handshake.answer(self._secret, self.name, stream, admit)

    def _forget(self, stream: Stream, thread: threading.Thread) -> None:
        with self._lock:
            self._waiting.pop(stream, None)
            self._guests.discard(stream)
            self._threads.discard(thread)
            stream.close()

    def counts(self) -> tuple[int, int, int, int]:
        """Guests, connections that wait, those that did not show the secret, those that did and then sent no frames."""
        with self._lock:
            return len(self._guests), len(self._waiting), self._refused, self._broken

    def close(self) -> None:
        """End all connections, and wait for their threads."""
        self._waking.close()
        self._door.join()
        self._listening.close()
        self._woken.close()
        with self._lock:
            threads = list(self._threads)
            for stream in (*self._waiting, *self._guests):
                stream.end()
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family, place = place_for_others(host, port)
        listening = socket.create_server(place, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error}") from error
    listening.setblocking(False)
    return listening
