"""Items in a dict, as a server gives them, and a server that says what it is told to say."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stoker import checksum
from stoker.memory import Bytes
from stoker.sealed import seal
from stoker.wire import handshake
from stoker.wire.channel import Channel
from stoker.wire.frames import Held, Told
from stoker.wire.items import Use
from stoker.wire.streams import PlainStream

SECRET = b"known to both sides"
checksum.load()


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def payload(number: int, size: int = 1000) -> bytes:
    return bytes((number + place) % 251 for place in range(100)) * (size // 100)


class Kept:
    """Items with names from 1 on."""

    def __init__(self, count: int = 0, size: int = 1000) -> None:
        self.sealed: dict[bytes, Bytes] = {name(n): seal(name(n), payload(n, size)) for n in range(1, count + 1)}
        self.generation = 1
        self.heard: list[tuple[bytes, Told]] = []

    def visit(self, keys: Sequence[bytes], use: Use) -> None:
        use([self.sealed.get(key) for key in keys])

    def which(self, known: int, after: bytes, limit: int) -> Held:
        if known == self.generation:
            return Held(known, (), True)
        names = sorted(key for key in self.sealed if key > after)
        return Held(self.generation, names[:limit], len(names) <= limit)

    def told(self, who: bytes, told: Told) -> None:
        self.heard.append((who, told))


@contextlib.contextmanager
def saying(say: Callable[[Channel], None]) -> Iterator[tuple[str, int]]:
    """The address of a server that knows the secret, and then does what the test wants, for each connection in turn."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            with sock, contextlib.suppress(OSError):
                stream = PlainStream(sock, 10)
                session = handshake.answer(SECRET, bytes(16), stream, lambda: True)
                say(Channel(stream, session))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def pair() -> tuple[Channel, Channel]:
    """Both ends of a connection after the handshake."""
    one, other = (PlainStream(sock, 10) for sock in socket.socketpair())
    sessions: list[handshake.Session] = []

    def answer() -> None:
        sessions.append(handshake.answer(SECRET, b"b" * 16, other, lambda: True))

    thread = threading.Thread(target=answer)
    thread.start()
    session = handshake.ask(SECRET, b"a" * 16, one, "there")
    thread.join()
    return Channel(one, session), Channel(other, sessions[0])


class ServerProcess:
    """A server that can be stopped, killed and started again at its address."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", 0)
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-c", _SERVE, str(self.address[1])]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._process.stdout is not None
        self.address = ("127.0.0.1", int(self._process.stdout.readline()))

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with self._process:
            self._process.kill()

    def start_again(self) -> None:
        self.kill()
        self._start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


_SERVE = """
import sys
from tests.wire.kept import SECRET, Kept
from stoker.wire.server import ItemServer
with ItemServer(("127.0.0.1", int(sys.argv[1])), Kept(50, 100_000), SECRET) as server:
    print(server.address[1], flush=True)
    sys.stdin.read()
"""
