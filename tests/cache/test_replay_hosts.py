"""Several hosts with one cache, replayed: what comes from here, from peers and from storage, by policy."""

from functools import cache

import pytest

from stoker.cache.replay_hosts import HostEpoch, HostsReplay, replay_hosts
from stoker.cache.shares import shares_of
from stoker.errors import ConfigError
from stoker.order import Drawn

SAMPLES = 2400


@cache
def played(hosts: int, fits: float, policy: str, ahead: int = 0, epochs: int = 8) -> HostsReplay:
    shares = shares_of(Drawn(SAMPLES, seed=1), hosts)
    return replay_hosts(shares, [round(fits * SAMPLES)] * hosts, policy=policy, epochs=epochs, ahead=ahead, within=16)


def parts(total: HostEpoch) -> tuple[float, float, float]:
    """Service hits, hits at peers and reads from storage, of all uses."""
    return (total.service_hits / total.uses, total.peer_hits / total.uses, total.storage_reads / total.uses)


@pytest.mark.parametrize("policy", ["keep-first", "reuse-distance"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_caches_that_hold_everything_together_read_one_dataset_and_then_nothing(policy: str, ahead: int) -> None:
    found = played(3, 1 / 3, policy, ahead)
    assert [found.total(epoch, epoch + 1).bytes_from_storage for epoch in range(8)] == [SAMPLES] + [0] * 7
    assert [host.bytes_from_storage for host in found.epochs[0]] == [SAMPLES // 3] * 3


@pytest.mark.parametrize("policy", ["keep-first", "reuse-distance"])
def test_caches_that_hold_a_part_read_exactly_the_rest_evenly(policy: str) -> None:
    found = played(3, 0.2, policy)
    for epoch in range(1, 8):
        assert found.total(epoch, epoch + 1).bytes_from_storage == pytest.approx(0.4 * SAMPLES, rel=0.01)
    by_host = [HostEpoch.total([hosts[number] for hosts in found.epochs[1:]]).bytes_from_storage for number in range(3)]
    assert max(by_host) < 1.1 * min(by_host)


def test_spare_room_is_filled_with_copies() -> None:
    found = played(2, 0.65, "keep-first", ahead=1)
    assert found.total(1, 2).service_hits > 0.65 * SAMPLES  # the copies are what is used in that epoch
    here, peer, storage = parts(found.total(after=2))
    assert here == pytest.approx(0.65, abs=0.01)
    assert peer == pytest.approx(0.35, abs=0.01)
    assert storage == 0


def test_who_knows_what_comes_finds_more_of_it_here_and_reads_no_more_from_storage() -> None:
    found = played(4, 0.296, "reuse-distance", epochs=20).total(after=10)
    assert found.demand_hits / found.uses == pytest.approx(0.525, abs=0.02)
    assert found.storage_reads == 0
    kept = played(4, 0.296, "keep-first", epochs=8).total(after=2)
    assert kept.demand_hits / kept.uses == pytest.approx(0.296, abs=0.02)
    assert kept.storage_reads == 0


def test_what_is_fetched_ahead_is_here_in_time_and_costs_hardly_more_transfers() -> None:
    on_demand = played(4, 0.296, "reuse-distance", epochs=20).total(after=10)
    ahead = played(4, 0.296, "reuse-distance", ahead=1, epochs=20).total(after=10)
    assert ahead.service_hits == ahead.uses
    assert ahead.ahead_from_storage == 0
    assert ahead.bytes_from_peers < 1.1 * on_demand.bytes_from_peers


def test_every_use_is_served_once() -> None:
    for found in (played(4, 0.296, "reuse-distance", 1, 20), played(3, 0.2, "keep-first")):
        for epoch in found.epochs:
            assert sum(host.uses for host in epoch) == SAMPLES
            for host in epoch:
                assert host.uses == host.service_hits + host.peer_hits + host.storage_reads


def test_what_goes_after_its_last_use_is_not_missed() -> None:
    shares = shares_of(Drawn(SAMPLES, seed=1), 4, epochs=6)
    found = replay_hosts(shares, [round(0.296 * SAMPLES)] * 4, epochs=6)
    endless = played(4, 0.296, "reuse-distance", epochs=20)
    for epoch in range(6):
        here, then = found.total(epoch, epoch + 1), endless.total(epoch, epoch + 1)
        assert here.storage_reads == then.storage_reads
        assert here.demand_hits >= 0.98 * then.demand_hits


def test_capacities_for_all_hosts() -> None:
    with pytest.raises(ConfigError, match="2 capacities for 3 hosts"):
        replay_hosts(shares_of(Drawn(9), 3), [1, 2])
