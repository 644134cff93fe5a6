import socket
import threading
from collections.abc import Iterator

import pytest
from tests.wire.kept import SECRET, pair

from stoker.errors import ConfigError
from stoker.wire import handshake
from stoker.wire.handshake import RefusedError, Session
from stoker.wire.streams import PlainStream

Ends = tuple[PlainStream, PlainStream]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = (PlainStream(sock, 10) for sock in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def answered(stream: PlainStream, secret: bytes = SECRET, has_room: bool = True) -> "Answering":
    answering = Answering(stream, secret, has_room)
    answering.start()
    return answering


class Answering(threading.Thread):
    """The answering side, and how it ended."""

    def __init__(self, stream: PlainStream, secret: bytes, has_room: bool) -> None:
        super().__init__()
        self.stream, self.secret, self.has_room = stream, secret, has_room
        self.outcome: Session | Exception | None = None

    def run(self) -> None:
        try:
            self.outcome = handshake.answer(self.secret, b"b" * 16, self.stream, lambda: self.has_room)
        except Exception as error:
            self.outcome = error
            self.stream.end()

    def ended(self) -> Session | Exception | None:
        self.join()
        return self.outcome


def test_both_sides_know_each_other_and_the_keys() -> None:
    one, other = pair()
    assert (one.name, other.name) == (b"b" * 16, b"a" * 16)
    keys = {one._sending, one._receiving, other._sending, other._receiving}
    assert one._sending == other._receiving and one._receiving == other._sending and len(keys) == 2
    again, _ = others = pair()
    assert not {again._sending, again._receiving} & keys
    for channel in (one, other, *others):
        channel.stream.close()


def test_a_wrong_secret_gets_nothing(ends: Ends) -> None:
    answering = answered(ends[1])
    with pytest.raises(ConfigError, match="the secret must be the same on both"):
        handshake.ask(b"another secret, long enough", b"a" * 16, ends[0], "host:1")
    assert isinstance(answering.ended(), RefusedError)


def test_a_server_that_does_not_know_the_secret_is_not_believed(ends: Ends) -> None:
    def pretend() -> None:
        room = memoryview(bytearray(48))
        ends[1].receive(room[:40])
        ends[1].send(handshake._OPENING.pack(handshake.MAGIC, handshake.VERSION, bytes(32)))
        ends[1].receive(room)
        ends[1].send(bytes(room) + b"\1")  # what it got, sent back

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(ConfigError, match="does not know the secret"):
        handshake.ask(SECRET, b"a" * 16, ends[0], "host:1")
    thread.join()


def test_another_version_is_named(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = handshake._OPENING.pack(handshake.MAGIC, 9, bytes(32))
    ends[1].send(opening)
    with pytest.raises(ConfigError, match=r"host:1 speaks version 9 of the wire, this host version 1: install the same"):
        handshake.ask(SECRET, b"a" * 16, ends[0], "host:1")


def test_the_answering_side_tells_its_version_to_another_one(ends: Ends) -> None:
    answering = answered(ends[1])
    ends[0].send(handshake._OPENING.pack(handshake.MAGIC, 9, bytes(32)))
    room = memoryview(bytearray(40))
    ends[0].receive(room)
    assert handshake._OPENING.unpack(room)[:2] == (handshake.MAGIC, handshake.VERSION)
    assert isinstance(answering.ended(), RefusedError)


def test_something_else_than_stoker_is_named(ends: Ends) -> None:
    ends[1].send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(ConfigError, match="does not answer as Stoker does"):
        handshake.ask(SECRET, b"a" * 16, ends[0], "host:1")


def test_a_proof_serves_once(ends: Ends) -> None:
    """One who has listened to a handshake cannot repeat it: the other side's nonce is another one."""
    sent: list[bytes] = []

    class Listened(PlainStream):
        def send(self, content: bytes) -> None:  # type: ignore[override]
            sent.append(content)
            super().send(content)

    one, other = (Listened(sock, 10) for sock in socket.socketpair())
    answering = answered(other)
    handshake.ask(SECRET, b"a" * 16, one, "host:1")
    assert isinstance(answering.ended(), Session)
    hello, _, response, _ = sent
    answering = answered(ends[1])
    ends[0].send(hello)
    ends[0].send(response)
    assert isinstance(answering.ended(), RefusedError)
    one.close()
    other.close()


def test_a_full_server_says_so(ends: Ends) -> None:
    answering = answered(ends[1], has_room=False)
    with pytest.raises(ConnectionRefusedError, match="as many connections as it allows"):
        handshake.ask(SECRET, b"a" * 16, ends[0], "host:1")
    assert isinstance(answering.ended(), RefusedError)


def test_an_ended_connection_is_an_error_of_the_connection(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(ConnectionError):
        handshake.ask(SECRET, b"a" * 16, ends[0], "host:1")
