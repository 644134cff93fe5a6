import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.tries import HANG_S, until
from tests.wire.kept import SECRET, Kept, name, payload

from stoker.cache.store import Store
from stoker.errors import ConfigError
from stoker.keeper.giving import Gifts
from stoker.wire import conversation, handshake
from stoker.wire.channel import Channel
from stoker.wire.frames import Header, Kind, pack_get
from stoker.wire.link import connect
from stoker.wire.peer import Peer
from stoker.wire.reception import WAITING
from stoker.wire.server import ItemServer
from stoker.wire.streams import PlainStream


@pytest.fixture
def kept() -> Kept:
    return Kept(100)


@pytest.fixture
def server(kept: Kept) -> Iterator[ItemServer]:
    with ItemServer(("127.0.0.1", 0), kept, SECRET) as server:
        yield server


def guest(server: ItemServer) -> Channel:
    """A connection that does only what a test tells it."""
    return connect(server.address, SECRET, b"g" * 16, time.monotonic() + HANG_S, 10)


def test_a_thousand_idle_connections_keep_nobody_out(server: ItemServer) -> None:
    before = psutil.Process().memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(server.address))
        with Peer(server.address, SECRET, deadline_s=HANG_S) as peer:
            peer.greet()
            with peer.get([name(1), name(2)]) as answer:
                assert [bytes(found or b"") for found in answer.payloads] == [payload(1), payload(2)]
        assert server.stats().waiting <= WAITING
        assert psutil.Process().memory_info().rss - before < 50 << 20
    until(lambda: server.stats().waiting == 0)
    assert server.stats().refused >= 1000 - 1


def test_who_does_not_show_the_secret_in_time_has_to_go(kept: Kept) -> None:
    with ItemServer(("127.0.0.1", 0), kept, SECRET, handshake_s=0.2) as server:
        with socket.create_connection(server.address) as silent, socket.create_connection(server.address) as slow:
            for sock in (silent, slow):
                sock.settimeout(HANG_S)
            with contextlib.suppress(OSError):  # a byte now and then does not help
                while True:
                    slow.sendall(b"S")
                    time.sleep(0.01)
            assert silent.recv(1) == b""


def test_nothing_is_said_to_who_does_not_greet(server: ItemServer) -> None:
    with socket.create_connection(server.address) as sock:
        sock.settimeout(HANG_S)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_only_so_many_guests_are_let_in(kept: Kept) -> None:
    with ItemServer(("127.0.0.1", 0), kept, SECRET, guests=2) as server:
        guests = [guest(server), guest(server)]
        with pytest.raises(ConnectionRefusedError, match="as many connections"):
            guest(server)
        guests.pop().stream.close()
        until(lambda: server.stats().guests == 1)
        guests.append(guest(server))
        for channel in guests:
            channel.stream.close()


def test_a_frame_that_is_none_ends_the_connection_and_only_that(server: ItemServer) -> None:
    bad, good = guest(server), guest(server)
    bad.stream.send(b"x" * 100)
    with contextlib.suppress(ConnectionResetError):
        assert bad.receive() is None
    good.stream.send(good.head(Header(Kind.PING, 5, 0, 0, 0), b""))
    frame = good.receive()
    assert frame is not None and frame.header == Header(Kind.PONG, 5, 0, 0, 0)
    assert server.stats().broken == 1
    bad.stream.close()
    good.stream.close()


def ask_for(channel: Channel, keys: list[bytes], times: int) -> None:
    body = pack_get(keys, 1 << 24)
    for number in range(times):
        channel.stream.send(channel.head(Header(Kind.GET, number, len(keys), len(body), 0), body))


def test_a_guest_that_does_not_read_holds_one_answer_and_no_transaction(tmp_path: Path) -> None:
    """The store's pages are used again although the guest reads nothing; another guest is served; memory stays bounded."""
    store = Store(tmp_path)
    size, count = 1_000_000, 20
    keys = [name(number) for number in range(1, count + 1)]
    store.put([(key, payload(n, size)) for n, key in enumerate(keys, 1)], 1 << 30)
    before = psutil.Process().memory_info().rss
    with ItemServer(("127.0.0.1", 0), Gifts(store), SECRET) as server:
        slow = guest(server)
        ask_for(slow, keys, 50)
        until(lambda: server.stats().requests >= 1)
        with Peer(server.address, SECRET, deadline_s=HANG_S) as peer:
            peer.greet()
            for _ in range(20):
                with peer.get(keys[:4]) as answer:
                    assert [len(found or b"") for found in answer.payloads] == [size] * 4
        assert psutil.Process().memory_info().rss - before < 50 * count * size / 4
        until(lambda: not any(line.split()[-1].isdigit() for line in store._environment.readers().splitlines()[1:]))
        slow.stream.close()
    store.close()


def test_a_guest_that_takes_nothing_for_long_is_let_go(kept: Kept) -> None:
    kept.sealed = {name(1): bytes(4 << 20)}
    with ItemServer(("127.0.0.1", 0), kept, SECRET, patience_s=0.2) as server:
        slow = guest(server)
        ask_for(slow, [name(1)], 20)
        until(lambda: server.stats().guests == 0)
        slow.stream.close()


def test_copies_for_slow_guests_are_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """When others have not taken theirs, items are given later, not copied without end."""
    kept.sealed = {name(number): bytes(1 << 20) for number in (1, 2, 3)}
    counts = conversation.Counts(copies_bytes=5 << 19)
    said = conversation.Conversation(guest_of_nobody(), kept, counts)
    statuses, sizes, parts = said._choose(list(kept.sealed.values()), 1 << 24)
    assert [int(status) for status in statuses] == [1, 1, 2] and len(parts) == 2 and sizes == [1 << 20] * 3


def guest_of_nobody() -> Channel:
    one, other = socket.socketpair()
    other.close()
    stream = PlainStream(one, 1)
    stream.close()
    return Channel(stream, handshake.Session(bytes(32), bytes(32), bytes(16)))


def test_a_store_that_is_gone_has_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put([(name(1), b"payload")], 100)
    with (
        ItemServer(("127.0.0.1", 0), Gifts(store), SECRET) as server,
        Peer(server.address, SECRET, deadline_s=HANG_S) as peer,
    ):
        peer.greet()
        (tmp_path / "data.mdb").unlink()
        with peer.get([name(1)]) as answer:
            assert answer.payloads == [None] and not answer.damaged
        assert peer.which() is not None
        assert server.stats().broken == 0
    store.close()


def test_an_address_that_cannot_be_used_is_one_clear_error(server: ItemServer, kept: Kept) -> None:
    for address in (server.address, ("no.such.host.invalid", 1), ("192.0.2.1", 1)):
        with pytest.raises(ConfigError, match=f"cannot listen at {address[0]}:{address[1]}"):
            ItemServer(address, kept, SECRET)


def test_close_ends_all_threads_and_sockets(kept: Kept, open_files: int) -> None:
    server = ItemServer(("127.0.0.1", 0), kept, SECRET)
    channel = guest(server)
    with socket.create_connection(server.address):
        server.close()
    assert channel.receive() is None
    channel.stream.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_files + 1  # the listing itself


def test_hosts_share_a_link_fairly_where_the_default_is_bbr() -> None:
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError:
            pytest.skip("this kernel has no BBR, or does not let this user choose it")
        stream = PlainStream(sock, 1)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") in (b"cubic", b"reno")
        stream.close()
