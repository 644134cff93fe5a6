import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.tries import HANG_S, in_some_try, until
from tests.wire.certificates import certified
from tests.wire.kept import SECRET, Kept, ServerProcess, name, payload, saying

from stoker.errors import ConfigError
from stoker.sealed import seal
from stoker.wire import frames
from stoker.wire.channel import Channel
from stoker.wire.frames import Header, Kind, Told
from stoker.wire.items import Use
from stoker.wire.peer import Peer
from stoker.wire.server import ItemServer
from stoker.wire.tls import VARIABLES, Tls, from_environment


@pytest.fixture
def kept() -> Kept:
    return Kept(100)


@pytest.fixture
def server(kept: Kept) -> Iterator[ItemServer]:
    with ItemServer(("127.0.0.1", 0), kept, SECRET) as server:
        yield server


@pytest.fixture
def peer(server: ItemServer) -> Iterator[Peer]:
    with Peer(server.address, SECRET, deadline_s=HANG_S) as peer:
        peer.greet()
        yield peer


def test_items_come_in_the_order_asked_for_and_absent_ones_are_none(peer: Peer, server: ItemServer) -> None:
    with peer.get([name(3), name(1000), name(1)]) as answer:
        assert [found and bytes(found) for found in answer.payloads] == [payload(3), None, payload(1)]
        assert bytes(answer.sealed[0] or b"") == seal(name(3), payload(3))
    stats = peer.stats()
    assert (stats.requests, stats.given, stats.absent, stats.damaged, stats.late) == (1, 2, 1, 0, 0)
    assert (server.stats().given, server.stats().absent) == (2, 1)


def test_many_threads_ask_at_once(peer: Peer) -> None:
    wrong: list[int] = []

    def ask(first: int) -> None:
        for number in range(first, 101, 4):
            requests = [peer.ask([name(number), name(101 - number)]) for _ in range(2)]
            for request in requests:
                with request.answer() as answer:
                    if [bytes(found or b"") for found in answer.payloads] != [payload(number), payload(101 - number)]:
                        wrong.append(number)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_connections_share_the_requests(server: ItemServer) -> None:
    with Peer(server.address, SECRET, connections=3, deadline_s=HANG_S) as peer:
        until(lambda: peer.stats().links == 3)
        requests = [peer.ask([name(number)]) for number in range(1, 21)]
        for number, request in enumerate(requests, 1):
            with request.answer() as answer:
                assert bytes(answer.payloads[0] or b"") == payload(number)
    until(lambda: server.stats().guests == 0)


def test_what_does_not_fit_is_told_and_can_be_asked_for(peer: Peer) -> None:
    sealed_bytes = len(seal(name(1), payload(1)))
    with peer.get([name(1), name(2), name(3)], limit_bytes=2 * sealed_bytes) as answer:
        assert [found is not None for found in answer.payloads] == [True, True, False]
        assert answer.later == {2: sealed_bytes}
    with peer.get([name(1)], limit_bytes=10) as answer:
        assert answer.payloads == [None] and answer.later == {0: sealed_bytes}


def test_long_items_come_whole(peer: Peer, kept: Kept) -> None:
    size = 20_000_000
    kept.sealed[name(500)] = seal(name(500), payload(5, size))
    with peer.get([name(500), name(1)]) as answer:
        assert answer.later.keys() == {0} and bytes(answer.payloads[1] or b"") == payload(1)
    with peer.get([name(500)], limit_bytes=64 << 20) as answer:
        assert bytes(answer.payloads[0] or b"") == payload(5, size)


def test_an_empty_item_is_an_item(peer: Peer, kept: Kept) -> None:
    kept.sealed[name(500)] = seal(name(500), b"")
    with peer.get([name(500), name(500), name(1)]) as answer:
        assert [found if found is None else bytes(found) for found in answer.payloads] == [b"", b"", payload(1)]


def test_names_come_in_pieces(peer: Peer, kept: Kept) -> None:
    first = peer.which(limit=40)
    assert first is not None and len(first.names) == 40 and not first.is_last
    rest = peer.which(after=first.names[-1])
    assert rest is not None and rest.is_last
    assert [*first.names, *rest.names] == sorted(kept.sealed)
    assert [held.names for held in peer.names()] == [sorted(kept.sealed)]
    same = peer.which(known=1)
    assert same is not None and not same.names and same.is_last and same.generation == 1


def test_what_is_told_arrives_with_the_name_of_the_teller(peer: Peer, kept: Kept) -> None:
    names = [name(number) for number in range(10_000)]
    assert peer.tell(Told(7, names, names[:5]))
    assert peer.ping()  # what was sent before is read
    assert {who for who, _ in kept.heard} == {peer.name} and {told.number for _, told in kept.heard} == {7}
    assert [held for _, told in kept.heard for held in told.held] == names
    assert [gone for _, told in kept.heard for gone in told.gone] == names[:5]


def test_the_other_process_has_a_name(peer: Peer, server: ItemServer) -> None:
    assert peer.other_name == server.name != peer.name


def test_a_peer_that_is_not_there_delays_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
    with Peer(address, SECRET) as peer:
        began = time.monotonic()
        assert peer.get([name(1)], deadline_s=HANG_S).payloads == (None,)
        assert peer.which(deadline_s=HANG_S) is None and not peer.ping(HANG_S) and not peer.tell(Told(1, [name(1)], []))
        assert time.monotonic() - began < HANG_S
        with pytest.raises(OSError, match="cannot be reached"):
            peer.greet(0.1)
        with ItemServer(address, Kept(1), SECRET):
            peer.greet(HANG_S)
            with peer.get([name(1)], deadline_s=HANG_S) as answer:
                assert answer.payloads[0] is not None


def test_a_wrong_secret_is_one_clear_error(server: ItemServer) -> None:
    with Peer(server.address, b"another secret, long enough") as peer:
        with pytest.raises(ConfigError, match="the secret must be the same"):
            peer.greet(HANG_S)
        assert peer.get([name(1)]).payloads == (None,)
        assert "secret" in peer.stats().trouble
    assert server.stats().requests == 0


def test_a_peer_that_starts_again_is_used_again(kept: Kept) -> None:
    first = ItemServer(("127.0.0.1", 0), kept, SECRET)
    with Peer(first.address, SECRET, deadline_s=HANG_S) as peer:
        peer.greet()
        first.close()
        until(lambda: not peer.is_usable)
        assert peer.get([name(1)]).payloads == (None,)
        with ItemServer(first.address, kept, SECRET) as second:
            peer.greet()
            assert peer.other_name == second.name
            with peer.get([name(1)]) as answer:
                assert bytes(answer.payloads[0] or b"") == payload(1)


@pytest.fixture
def process() -> Iterator[tuple[int, tuple[str, int]]]:
    """The pid and the address of a server that can be stopped and killed."""
    with ServerProcess() as process:
        yield process.pid, process.address


def has_stopped(pid: int) -> bool:
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_a_stopped_peer_delays_one_read_by_the_deadline_and_no_second(process: tuple[int, tuple[str, int]]) -> None:
    pid, address = process
    with Peer(address, SECRET, deadline_s=1.0) as peer:
        peer.greet(HANG_S)

        def stop_and_go_on() -> None:
            until(lambda: peer.is_usable)
            with peer.get([name(1)]) as answer:
                assert answer.payloads[0] is not None
            os.kill(pid, signal.SIGSTOP)
            until(lambda: has_stopped(pid))
            try:
                others = [peer.ask([name(2)], HANG_S) for _ in range(2)]  # their own deadlines are far away
                began = time.monotonic()
                assert peer.get([name(1)]).payloads == (None,)
                first_s = time.monotonic() - began
                assert peer.stats().is_suspect
                began = time.monotonic()
                for other in others:
                    assert other.answer().payloads == (None,)
                for _ in range(100):
                    assert peer.get([name(1)]).payloads == (None,)
                second_s = time.monotonic() - began
            finally:
                os.kill(pid, signal.SIGCONT)
            until(lambda: peer.is_usable)
            with peer.get([name(1)], HANG_S) as answer:
                assert bytes(answer.payloads[0] or b"") == payload(1, 100_000)
            assert 1.0 <= first_s < 2.0 and second_s < 0.5

        in_some_try(stop_and_go_on)
        assert peer.stats().late >= 1


def test_a_killed_peer_is_no_error(process: tuple[int, tuple[str, int]]) -> None:
    pid, address = process
    with Peer(address, SECRET, deadline_s=HANG_S) as peer:
        peer.greet()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not peer.is_usable)
        assert peer.get([name(1)]).payloads == (None,)
        assert not peer.stats().late


ITEM = seal(name(1), payload(1))


def answer_with(content: bytes, sizes: list[int], cut: int | None = None) -> Callable[[Channel], None]:
    def say(channel: Channel) -> None:
        while (frame := channel.receive()) is not None:
            if frame.header.kind == Kind.GET:
                body = frames.pack_items([1] * len(sizes), sizes)
                head = channel.head(Header(Kind.ITEMS, frame.header.number, len(sizes), len(body), sum(sizes)), body)
                channel.stream.send((head + content)[:cut])
                if cut is not None:
                    return
            else:
                channel.stream.send(channel.head(Header(Kind.PONG, frame.header.number, 0, 0, 0), b""))

    return say


WRONG = {
    "a wrong byte": (answer_with(bytes([ITEM[0] ^ 1]) + ITEM[1:], [len(ITEM)]), 1),
    "a wrong checksum": (answer_with(ITEM[:-1] + b"?", [len(ITEM)]), 1),
    "another item": (answer_with(seal(name(2), payload(2)), [len(ITEM)]), 1),
    "a short item": (answer_with(ITEM[:3], [3]), 1),
    "no bytes at all": (answer_with(b"", [0]), 1),
    "half a frame": (answer_with(ITEM, [len(ITEM)], cut=20), 0),
    "half an item": (answer_with(ITEM, [len(ITEM)], cut=500), 0),
    "too many items": (answer_with(ITEM * 2, [len(ITEM)] * 2), 0),
    "too long an answer": (answer_with(ITEM, [17 << 20]), 0),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_absent_and_ends_the_connection(what: str) -> None:
    say, damaged = WRONG[what]
    with saying(say) as address, Peer(address, SECRET, deadline_s=HANG_S) as peer:
        for turn in range(1, 3):
            peer.greet()
            connected = peer.stats().connected
            with peer.get([name(1)]) as answer:
                assert answer.payloads[0] is None and answer.damaged == damaged
            until(lambda connected=connected: peer.stats().connected > connected)  # type: ignore[misc]
            assert peer.stats().damaged == damaged * turn and peer.stats().given == 0


def test_right_items_beside_a_wrong_one_are_given() -> None:
    say = answer_with(bytes(len(ITEM)) + ITEM, [len(ITEM), len(ITEM)])
    with saying(say) as address, Peer(address, SECRET, deadline_s=HANG_S) as peer:
        peer.greet()
        with peer.get([name(2), name(1)]) as answer:
            assert answer.payloads[0] is None and bytes(answer.payloads[1] or b"") == payload(1)


def test_an_answer_to_nothing_ends_the_connection() -> None:
    def say(channel: Channel) -> None:
        channel.stream.send(channel.head(Header(Kind.PONG, 77, 0, 0, 0), b""))

    with saying(say) as address, Peer(address, SECRET) as peer:
        until(lambda: peer.stats().connected >= 2)


def test_requests_under_way_are_bounded() -> None:
    """One more than that waits for its own deadline, and then nobody waits any more."""
    over = threading.Event()
    with saying(lambda _: over.wait(HANG_S) and None) as address, Peer(address, SECRET, under_way=2) as peer:
        peer.greet(HANG_S)
        requests = [peer.ask([name(1)], HANG_S) for _ in range(2)]
        assert peer.get([name(1)], 0.2).payloads == (None,)
        assert peer.stats().is_suspect or peer.stats().lost
        for request in requests:
            assert request.answer().payloads == (None,)
        over.set()


def test_a_host_that_is_asked_for_more_than_its_link_brings_is_not_late(kept: Kept) -> None:
    """Ten readers want an item each, and one takes a third of the limit."""
    given = kept.visit

    def visit(keys: Sequence[bytes], use: Use) -> None:
        time.sleep(0.17)
        given(keys, use)

    kept.visit = visit  # type: ignore[method-assign]
    with ItemServer(("127.0.0.1", 0), kept, SECRET) as server, Peer(server.address, SECRET, deadline_s=0.5) as peer:
        peer.greet(HANG_S)

        def all_are_given() -> None:
            until(lambda: peer.is_usable)
            late, found = peer.stats().late, []

            def read(number: int) -> None:
                with peer.get([name(number)]) as answer:
                    found.append(answer.payloads[0] is not None)

            threads = [threading.Thread(target=read, args=(number,)) for number in range(1, 11)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(found) and peer.stats().late == late

        in_some_try(all_are_given)


def side_by_side(peer: Peer, count: int) -> list[bool]:
    """Read so many items at once. Returns which came."""

    def read(_: int) -> bool:
        with peer.get([name(1)]) as answer:
            return answer.payloads[0] is not None

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(read, range(count)))


def answer_all(channel: Channel, waiting: list[Header]) -> None:
    for header in waiting:
        is_ping = header.kind == Kind.PING
        body, item = (b"", b"") if is_ping else (frames.pack_items([1], [len(ITEM)]), ITEM)
        kind = Kind.PONG if is_ping else Kind.ITEMS
        channel.stream.send(channel.head(Header(kind, header.number, header.count, len(body), len(item)), body) + item)


def test_answers_that_are_late_together_are_one_sign_of_a_slow_link() -> None:
    """Eight requests are under way, all are answered late, and then half as many still go side by side."""
    together, hold_s = 1, 0.0

    def say(channel: Channel) -> None:
        waiting = []
        while (frame := channel.receive()) is not None:
            waiting.append(frame.header)
            if frame.header.kind == Kind.PING or len(waiting) >= together:
                time.sleep(hold_s)
                answer_all(channel, waiting)
                waiting = []

    with saying(say) as address, Peer(address, SECRET, deadline_s=2.0) as peer:

        def half_as_many_still_go_side_by_side() -> None:
            nonlocal together, hold_s
            together, hold_s = 1, 0.0
            until(lambda: peer.is_usable)
            assert all(side_by_side(peer, 1)[0] for _ in range(20))
            together, hold_s = 8, 1.1
            assert all(side_by_side(peer, 8))
            together, hold_s = 4, 0.0
            assert all(side_by_side(peer, 8))

        in_some_try(half_as_many_still_go_side_by_side)


def test_a_host_that_was_late_is_not_asked_for_more() -> None:
    """What it was not even asked, because it is suspect, says nothing about its link."""
    counts = [0]

    def say(channel: Channel) -> None:
        waiting = []
        while (frame := channel.receive()) is not None:
            waiting.append(frame.header)
            if frame.header.kind == Kind.PING:
                answer_all(channel, waiting)
                waiting = []
                counts.append(0)
            counts[-1] += frame.header.kind == Kind.GET

    with saying(say) as address, Peer(address, SECRET, deadline_s=0.2) as peer:
        while len(counts) < 5:
            until(lambda: peer.is_usable)
            assert not any(side_by_side(peer, 20))
            assert not any(peer.get([name(1)]).payloads[0] for _ in range(20))
        assert sum(counts) > counts[0] and max(counts) <= 2


def test_memory_of_answers_is_used_again(peer: Peer) -> None:
    for _ in range(3):
        with peer.get([name(1)]):
            pass
    assert len(peer._buffers._free) == 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certified(tmp_path_factory.mktemp("tls"))


def test_items_come_by_tls(kept: Kept, certificates: Tls) -> None:
    kept.sealed[name(500)] = seal(name(500), payload(5, 5_000_000))
    keys = [name(500), *(name(number) for number in range(1, 101))]
    with ItemServer(("127.0.0.1", 0), kept, SECRET, tls=certificates) as server:
        with Peer(server.address, SECRET, connections=2, deadline_s=HANG_S, tls=certificates) as peer:
            peer.greet()
            for _ in range(3):
                requests = [peer.ask(keys) for _ in range(8)]
                for request in requests:
                    with request.answer() as answer:
                        assert [bytes(found or b"") for found in answer.sealed] == [kept.sealed[key] for key in keys]
            assert not peer.stats().damaged


@pytest.mark.parametrize("is_server", [True, False])
def test_tls_on_one_side_only_is_named(kept: Kept, certificates: Tls, is_server: bool) -> None:
    sides = (certificates, None) if is_server else (None, certificates)
    with ItemServer(("127.0.0.1", 0), kept, SECRET, tls=sides[0], handshake_s=1) as server:
        with Peer(server.address, SECRET, tls=sides[1]) as peer:
            until(lambda: peer.stats().trouble)
            trouble = peer.stats().trouble
            assert "TLS" in trouble and "on for both" in trouble
            assert peer.get([name(1)]).payloads == (None,)
    assert server.stats().requests == 0


def test_a_certificate_of_another_authority_is_refused(kept: Kept, certificates: Tls, tmp_path: Path) -> None:
    other = certified(tmp_path)
    with ItemServer(("127.0.0.1", 0), kept, SECRET, tls=certificates) as server:
        with Peer(server.address, SECRET, tls=other) as peer:
            with pytest.raises(ConfigError, match="same authority"):
                peer.greet(HANG_S)


def test_tls_needs_all_files(certificates: Tls, tmp_path: Path) -> None:
    assert from_environment({}) is None
    with pytest.raises(ConfigError, match="STOKER_TLS_AUTHORITY"):
        from_environment({"STOKER_TLS_KEY": "x"})
    paths = dict(zip(VARIABLES, (certificates.certificate, certificates.key, certificates.authority), strict=True))
    assert from_environment({variable: str(path) for variable, path in paths.items()}) == certificates
    with pytest.raises(ConfigError, match=r"none\.pem"):
        Tls(tmp_path / "none.pem", certificates.key, certificates.authority).context(is_server=True)
