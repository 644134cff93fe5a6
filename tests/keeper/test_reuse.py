"""Keeping by reuse over hosts: what is told of the order, and who keeps an item that several hosts have used."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.keeper.test_peering import SECRET, free_ports
from tests.keeper.test_peers import Listed, filled
from tests.tries import until
from torch.utils.data import DistributedSampler, SequentialSampler

import stoker
from stoker.cache.staging import Stager, Staging
from stoker.cache.store import Store
from stoker.errors import ConfigError
from stoker.feed.foretold import Foretold
from stoker.keeper.house import House
from stoker.keeper.orders import EpochOrders
from stoker.keeper.peering import Peering
from stoker.keeper.reuse import Reuse
from stoker.keeper.table import KeeperTable, Where, range_entry, where, write_table
from stoker.source.files import shared_file_key

SIZE = 1000


def test_orders_are_read_where_they_are_told_and_others_are_unknown() -> None:
    told = EpochOrders(5, 3)
    for epoch in range(4):
        told.write(epoch, np.arange(5) + epoch)
    read = EpochOrders(5, 3, os.dup(told.memory.descriptor))
    assert [read.epoch(epoch).tolist() for epoch in range(5)] == [
        [],
        *([n, n + 1, n + 2, n + 3, n + 4] for n in (1, 2, 3)),
        [],
    ]
    with pytest.raises(ValueError, match="shorter"):
        EpochOrders(5000, 3, told.memory.descriptor)


def test_one_process_of_each_host_tells_what_all_ranks_read(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = [DistributedSampler(range(10), 4, rank, seed=3) for rank in range(4)]  # type: ignore[arg-type]
    found = [Foretold(sampler, hosts=2) for sampler in samplers]
    assert [one.orders is not None for one in found] == [True, False, True, False]
    samplers[0].set_epoch(2)
    orders = found[0].orders
    assert orders is not None
    assert found[0].begin(orders) == 2
    for epoch in (2, 5):
        for rank, sampler in enumerate(samplers):
            sampler.set_epoch(epoch)
            assert orders.epoch(epoch)[rank::4].tolist() == list(sampler)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="as many ranks on each host"):
        Foretold(samplers[0], hosts=2)


class Budget:
    def bytes(self) -> int:
        return 10 * SIZE


class Host:
    """One of two hosts with two files. What it uses is staged before, as readers do it."""

    def __init__(
        self, folder: Path, number: int, ports: list[int], stack: contextlib.ExitStack, orders: EpochOrders
    ) -> None:
        addresses = [("127.0.0.1", port) for port in ports]
        self.peering = Peering(addresses.pop(number), addresses, SECRET)
        stack.callback(self.peering.close)
        folder.mkdir()
        self.store = Store(folder)
        stack.callback(self.store.close)
        self.peering._gifts._stores[folder] = self.store, 1
        self.peering._gifts._ruled.add(folder)
        staging = Staging(1 << 20)
        self.stager = Stager(1 << 20, os.dup(staging.memory.descriptor))
        table = write_table(["/data/a", "/data/b"])
        assert table is not None
        told = {"world": 2, "rank": number, "ranks_of_host": 1, "capacity": 10 * SIZE}
        self.reuse = Reuse(self.store, Budget(), self.peering, KeeperTable(table), ("/data",), told)  # type: ignore[arg-type]
        stack.callback(self.reuse.close)
        self.reuse.orders_are(orders)

    def uses(self, sample: int) -> None:
        place = self.stager.reserve(0, self.key(sample), SIZE)
        assert place is not None
        self.stager.fill(place, self.key(sample), bytes(SIZE))
        self.reuse.brought(self.key(sample))
        self.reuse.use([sample], self.stager, lambda: self.stager.taken(1))

    def key(self, sample: int) -> bytes:
        return (shared_file_key("/data/" + "ab"[sample], ("/data",)) or b"") + bytes(32)

    def is_listed(self, sample: int) -> bool:
        return self.reuse._cooperation.policy.is_listed(sample)

    def holds(self, sample: int) -> bool:
        return self.store.size(self.key(sample)) == SIZE


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    orders, ports = EpochOrders(2, 5), free_ports(2)
    for epoch, ids in enumerate([(0, 1), (1, 0), (1, 0), (0, 1), (0, 1)]):
        orders.write(epoch, np.array(ids))
    with contextlib.ExitStack() as stack:
        yield [Host(tmp_path / str(number), number, ports, stack, orders) for number in (0, 1)]


def test_who_needs_it_sooner_takes_it_over_and_the_other_has_a_copy(hosts: list[Host]) -> None:
    for host, sample in zip(hosts, (0, 1), strict=True):
        host.reuse.begin(0)
        host.uses(sample)
    for host, elsewhere in zip(hosts, (1, 0), strict=True):
        until(lambda host=host, elsewhere=elsewhere: host.peering.listed_host(host.key(elsewhere)[:16]) == elsewhere)
    for host, sample in zip(hosts, (1, 0), strict=True):  # each uses the other's, and will do so again before the other
        host.reuse.begin(1)
        host.uses(sample)
    for host, sample in zip(hosts, (1, 0), strict=True):
        until(lambda host=host, sample=sample: host.is_listed(sample) and not host.is_listed(1 - sample))
        assert host.holds(sample) and host.holds(1 - sample)
        until(lambda host=host, sample=sample: host.peering.listed_host(host.key(1 - sample)[:16]) == sample)


def test_what_lies_in_the_store_from_before_is_told(hosts: list[Host], tmp_path: Path) -> None:
    one, other = hosts
    one.reuse.begin(0)
    one.uses(0)
    until(lambda: one.holds(0))
    one.reuse.close()
    table = write_table(["/data/a", "/data/b"])
    assert table is not None
    told = {"world": 2, "rank": 0, "ranks_of_host": 1, "capacity": 10 * SIZE}
    one.reuse = Reuse(one.store, Budget(), one.peering, KeeperTable(table), ("/data",), told)  # type: ignore[arg-type]
    until(lambda: one.is_listed(0) and other.peering.listed_host(one.key(0)[:16]) == 0)
    one.reuse.close()


class Neighbourhood:
    """A cache and other hosts, as the keeper's house has them."""

    def __init__(self, host: Host, peering: Peering) -> None:
        self.store, self.budget, self.reuse, self.peering = host.store, Budget(), host.reuse, peering


def test_a_loader_that_names_the_hosts_otherwise_decides_for_those(hosts: list[Host]) -> None:
    one, other = hosts
    (port,) = free_ports(1)
    renamed = Peering(("127.0.0.1", port), [other.peering.address], SECRET)
    try:
        other.peering.add([renamed.address])
        renamed._gifts._stores[one.store.folder] = one.store, 1
        table, orders = write_table(["/data/a", "/data/b"]), EpochOrders(2, 5)
        assert table is not None
        orders.write(0, np.array([0, 1]))
        told = {"world": 2, "rank": 0, "ranks_of_host": 1, "capacity": 10 * SIZE, "samples": 2, "epochs": 5}
        near: Any = Neighbourhood(one, renamed)
        House()._foretell(near, near, KeeperTable(table), ("/data",), told, os.dup(orders.memory.descriptor))
        one.peering.close()
        one.reuse = near.reuse
        one.reuse.begin(0)
        one.uses(0)
        until(lambda: other.peering.listed_host(one.key(0)[:16]) == 0)
        one.reuse.close()
    finally:
        renamed.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_policy": "lru"}, "goes with cache_policy='keep-first' or 'reuse-distance'"),
        ({"cache_policy": "reuse-distance"}, "needs torch's DistributedSampler"),
        ({"cache_policy": "reuse-distance", "sampler": "distributed"}, "keeps the paths of its files in a list"),
        ({"cache_policy": "reuse-distance", "group": "g"}, "does not go with group="),
    ],
)
def test_what_does_not_go_together(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of these tests" * 4)
    secret.chmod(0o600)
    monkeypatch.setenv("STOKER_SECRET_FILE", str(secret))
    peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    data = list(range(8))
    sampler = DistributedSampler(data, 2, 0) if options.pop("sampler", "") else SequentialSampler(data)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        stoker.DataLoader(data, sampler=sampler, cache="1MB", peers=peers, **options)  # type: ignore[arg-type]


def test_a_plan_may_say_it_and_is_obeyed_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of these tests" * 4)
    secret.chmod(0o600)
    monkeypatch.setenv("STOKER_SECRET_FILE", str(secret))
    peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'version = 1\n[cache]\ncapacity_bytes = 1000000\npolicy = "reuse-distance"\n[tiers]\npeers = "{peers}"\n'
    )
    listed = Listed(filled(tmp_path / "data", b"x"))
    found = {}
    for name, data, is_distributed in [
        ("known", listed, True),
        ("another order", listed, False),
        ("no files", list(range(8)), True),
    ]:
        sampler = DistributedSampler(data, 2, 0) if is_distributed else SequentialSampler(data)  # type: ignore[arg-type]
        with stoker.DataLoader(data, sampler=sampler, plan=plan) as loader:  # type: ignore[arg-type]
            found[name] = loader.cache_policy
    assert found == {"known": "reuse-distance", "another order": "keep-first", "no files": "keep-first"}


def test_what_is_no_range_is_a_path() -> None:
    assert where(range_entry("/a/b:c", 5, 7, b"v").encode()).path == b"/a/b:c"
    for odd in (b"", b"57", b"5:7", b"/plain", b"5:x:y:/z"):
        assert where(odd) == Where(odd)
