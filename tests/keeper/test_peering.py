"""Hosts that ask each other before storage; here they share a process, and each has a store."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.tries import until
from tests.wire.certificates import certified

from stoker.cache.store import Store
from stoker.keeper import peering as peerings
from stoker.keeper.directory import numbers_of
from stoker.keeper.far import Far
from stoker.keeper.peering import Peering
from stoker.keeper.table import KeeperTable, write_table

SECRET = b"a secret of sixteen bytes or more"


def key(number: int, own: bytes = b"") -> bytes:
    """The key of an item: what all hosts agree on, and what only one knows."""
    return hashlib.blake2b(bytes([number]), digest_size=16).digest() + bytes(16) + own.ljust(16)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        made = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[tuple[Store, Peering]]]:
    addresses = [("127.0.0.1", port) for port in free_ports(3)]
    with contextlib.ExitStack() as stack:
        found = []
        for number, own in enumerate(addresses):
            folder = tmp_path / str(number)
            folder.mkdir()
            peering = Peering(own, [other for other in addresses if other != own], SECRET)
            stack.callback(peering.close)
            store = Store(folder)
            stack.callback(store.close)
            found.append((store, peering))
        yield found


def give(host: tuple[Store, Peering], numbers: range) -> None:
    store, peering = host
    items = [(key(number, b"here"), bytes([number]) * 1000) for number in numbers]
    store.put(items, 1 << 20)
    peering._gifts._stores[store.folder] = store, 1
    peering.kept([name for name, _ in items])


def test_what_one_host_keeps_comes_from_there(hosts) -> None:
    give(hosts[0], range(10))
    give(hosts[1], range(10, 20))
    asking = hosts[2][1]
    wanted = [key(number, b"there") for number in range(22)]
    until(lambda: all(asking.has_elsewhere(one) for one in wanted[:20]))
    found = asking.fetch(wanted)
    assert found == [bytes([number]) * 1000 for number in range(20)] + [None, None]
    assert sum(peer.given for peer in asking.stats().peers.values()) == 20


def test_what_was_kept_before_they_met_is_known_and_what_has_gone_costs_one_question(hosts) -> None:
    give(hosts[0], range(5))
    store, _ = hosts[0]
    asking = hosts[1][1]
    until(lambda: asking.has_elsewhere(key(3)))
    store.put([], 1 << 20, [key(3, b"here")])
    assert asking.fetch([key(3)]) == [None]
    assert not asking.has_elsewhere(key(3))
    assert asking.fetch([key(4)]) == [bytes([4]) * 1000]


def test_what_workers_keep_by_themselves_is_told_too(hosts) -> None:
    give(hosts[0], range(1))
    store, _ = hosts[0]
    store.put([(key(7, b"here"), b"seven")], 1 << 20)
    asking = hosts[1][1]
    until(lambda: asking.has_elsewhere(key(7)))
    assert asking.fetch([key(7)]) == [b"seven"]


def test_a_host_that_is_gone_is_not_asked_and_one_that_comes_back_is(hosts, tmp_path: Path) -> None:
    give(hosts[0], range(5))
    store, leaving = hosts[0]
    asking = hosts[1][1]
    until(lambda: asking.has_elsewhere(key(3)))
    leaving.close()
    until(lambda: asking.fetch([key(3)]) == [None])
    others = [peering.address for _, peering in hosts[1:]]
    again = Peering(leaving.address, others, SECRET)
    try:
        give((store, again), range(5))
        until(lambda: asking.fetch([key(3)]) == [bytes([3]) * 1000])
    finally:
        again.close()


def test_with_certificates_nobody_without_one_gets_in(tmp_path: Path) -> None:
    tls = certified(tmp_path)
    addresses = [("127.0.0.1", port) for port in free_ports(3)]
    with contextlib.ExitStack() as stack:
        made = []
        for own, certificates in zip(addresses, (tls, tls, None), strict=True):
            made.append(Peering(own, [other for other in addresses if other != own], SECRET, certificates))
            stack.callback(made[-1].close)
        (tmp_path / "store").mkdir()
        store = Store(tmp_path / "store")
        stack.callback(store.close)
        give((store, made[0]), range(10))
        wanted = [key(number) for number in range(10)]
        until(lambda: all(made[1].has_elsewhere(one) for one in wanted))
        assert made[1].fetch(wanted) == [bytes([number]) * 1000 for number in range(10)]
        until(lambda: made[2].stats().peers[f"127.0.0.1:{addresses[0][1]}"].trouble)
        assert [made[2].search(one)[0] for one in wanted] == [None] * 10
        assert "TLS" in made[2].stats().peers[f"127.0.0.1:{addresses[0][1]}"].trouble


def test_all_is_held_somewhere(hosts) -> None:
    give(hosts[0], range(5))
    give(hosts[1], range(5, 10))
    until(lambda: hosts[2][1].covers(numbers_of([key(number) for number in range(10)])))
    assert not hosts[2][1].covers(numbers_of([key(number) for number in range(11)]))


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Far, "contextlib.AbstractContextManager[None]"]]:
    """What a loader in its second epoch finds on another host, and how to start that host, which has some items."""
    here, there = (("127.0.0.1", port) for port in free_ports(2))

    @contextlib.contextmanager
    def started() -> Iterator[None]:
        other, store = Peering(there, [here], SECRET), Store(folder)
        try:
            give((store, other), range(5))
            yield
        finally:
            other.close()
            store.close()

    table = write_table(["/data/a"])
    assert table is not None
    with contextlib.closing(Peering(here, [there], SECRET)) as peering:
        far = Far(peering, KeeperTable(table), ("/data",))
        far.is_first_epoch = False
        yield far, started()


def test_what_was_asked_for_while_a_host_was_away_is_asked_for_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(peerings, "_MEET_S", 0.0)
    with two_hosts(tmp_path) as (far, start):
        assert far.fetch(key(3)) is None
        assert far.has(key(3))
        with start:
            until(lambda: far.fetch(key(3)) == bytes([3]) * 1000)
            assert far.fetch(key(9)) is None
            assert not far.has(key(9))  # all were asked


def test_who_asks_all_hosts_waits_once_for_a_host_that_is_starting(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(peerings, "_MEET_S", 60.0)
    with two_hosts(tmp_path) as (far, start):
        connected: list[int] = []

        def ask() -> None:
            far.fetch(key(3))
            connected.extend(peer.connected for peer in far.peering.stats().peers.values())

        asking = threading.Thread(target=ask)
        asking.start()
        with start:
            asking.join()
        assert connected > [0]
        assert far.fetch(key(4)) is None  # it has gone again, and nobody waits for it


def test_a_host_is_heard_that_cannot_be_asked() -> None:
    class Heard:
        names: tuple[bytes, ...] = ()

        def told(self, names: Sequence[bytes]) -> None:
            self.names += tuple(names)

        def given(self, names: Sequence[bytes]) -> None:
            """Nobody reads here."""

    ports = free_ports(3)
    one, other, nobody = (("127.0.0.1", port) for port in ports)
    heard = Heard()
    with (
        contextlib.closing(Peering(one, [nobody], SECRET)) as deaf,
        contextlib.closing(Peering(other, [one], SECRET)) as teller,
    ):
        deaf.watch(heard, 0)
        teller.say([key(1)[:16]], ())
        until(lambda: heard.names == (key(1)[:16],))
