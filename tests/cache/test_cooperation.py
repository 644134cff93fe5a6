"""One host among several: who makes room, who is listed, and what never happens whatever is read in whatever order."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cache.cooperation import Cooperation
from stoker.cache.listed import Arrival, ListedLast
from stoker.cache.policy import Policy
from stoker.cache.replay_hosts import Hosts, replay_hosts
from stoker.cache.shares import Shares, shares_of
from stoker.errors import ConfigError
from stoker.order import Drawn, Ids
from stoker.testing import PolicyContract


def alike(ids: Sequence[int]) -> list[int]:
    return [1] * len(ids)


class TestListedLast(PolicyContract):
    def policy(self, next_use: Callable[[int], int]) -> Policy:
        return ListedLast(next_use)


class TestCopies(PolicyContract):
    def policy(self, next_use: Callable[[int], int]) -> Policy:
        made = ListedLast(next_use)
        made.expect(Arrival.COPY, is_ahead=False)
        return made


def test_copies_go_first_and_what_is_due_does_not_go() -> None:
    policy = ListedLast({1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 6: 60, 9: 15}.__getitem__)
    for arrival, keys in ((Arrival.COPY, (1, 2)), (Arrival.FROM_STORAGE, (3, 4)), (Arrival.TAKEN_OVER, (5, 6))):
        policy.expect(arrival, is_ahead=arrival is Arrival.TAKEN_OVER)
        for key in keys:
            policy.enter(key)
    expected = {
        (Arrival.FROM_STORAGE, False): [2, 1, 4, 3],
        (Arrival.FROM_STORAGE, True): [2, 4, 3],
        (Arrival.TAKEN_OVER, False): [2, 1],
        (Arrival.TAKEN_OVER, True): [2],
        (Arrival.COPY, False): [2],
        (Arrival.COPY, True): [2],
    }
    for (arrival, is_ahead), victims in expected.items():
        policy.expect(arrival, is_ahead=is_ahead)
        assert list(policy.victims(9)) == victims
    policy.expect(Arrival.FROM_STORAGE, is_ahead=False)
    policy.used(5)
    assert list(policy.victims(9)) == [2, 1, 5, 4, 3]
    policy.begin_epoch()
    assert list(policy.victims(9)) == [2, 1]
    policy.unlist(6)
    assert list(policy.victims(9)) == [6, 2, 1]
    assert sorted(policy.listed()) == [3, 4, 5]


def fixed(*epochs: list[int]) -> Shares:
    """Two hosts, with the samples of each epoch in turn."""

    def epoch_ids(epoch: int) -> Ids:
        return np.array(epochs[epoch], np.int64)

    return Shares(epoch_ids, [0, 1], epochs=len(epochs))


def test_who_needs_it_sooner_takes_it_over() -> None:
    listed = {0: 1, 2: 1}
    #                host 0 uses 0 and 2 in the first epoch; then host 1 uses 2 before host 0 does
    shares = fixed([0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3], [0, 2, 1, 3])
    one = Cooperation(0, 4, alike, listed.get, shares)
    one.begin(0)
    choice = one.decide([0, 2])
    assert (choice.kept, choice.listed, choice.forgotten) == ([0, 2], [0], [])
    other = Cooperation(1, 4, alike, {}.get, shares)
    other.begin(0)
    assert other.decide([1, 3]).listed == [1, 3]
    other.served(1)
    assert other.policy.is_listed(1)
    other.served(3, is_taken_over=True)
    assert other.policy.listed() == [1]
    assert 3 in other.ledger
    other.unlist([1])
    assert other.policy.listed() == []
    other.lost([1, 3])
    assert len(other.ledger) == 0


def test_after_the_last_use_it_goes_unless_another_host_needs_it() -> None:
    shares = fixed([0, 1, 2, 3], [2, 0, 1, 3])
    one = Cooperation(0, 4, alike, {3: 1}.get, shares)
    one.begin(0)
    assert one.decide([0, 2]).kept == [0, 2]  # host 1 needs 0, this one needs 2
    one.begin(1)
    assert one.decide([2]).forgotten == [2]
    assert one.served(0).forgotten == [0]
    assert one.decide([3]).kept == []
    assert len(one.ledger) == 0


def test_what_is_fetched_ahead() -> None:
    shares = fixed([0, 1, 2, 3, 4, 5], [5, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])
    listed = {1: 1, 3: 1}
    one = Cooperation(0, 3, alike, listed.get, shares, policy="keep-first")
    one.begin(0)
    choice = one.look_ahead(9, within=9)  # 0, 2 and 4 in this epoch; there is no room for 1 and 3
    assert (choice.kept, choice.listed) == ([0, 2, 4], [0, 2, 4])
    one.lost([0, 4])
    assert one.decide([0, 2, 4]).kept == [0, 4]
    one.lost([0, 4])
    choice = one.look_ahead(9, within=9)  # of 5, 1 and 3 in the next epoch, nobody has read 5 yet
    assert (choice.kept, choice.listed) == ([1, 3], [])


def test_without_a_known_order_background_filling_takes_what_is_offered() -> None:
    one = Cooperation(0, 3, alike, {7: 1, 8: 1, 9: 1}.get, policy="keep-first")
    assert len(one.begin(0)) == 0
    assert one.decide([1]).listed == [1]
    assert one.look_ahead(9, within=9).kept == []
    assert one.offer([7, 1, 8, 9]).kept == [7, 8]
    assert one.decide([2, 7, 9]).forgotten == [7]  # nobody else has 2; for 9 nothing makes room
    assert [key for key in range(10) if key in one.ledger] == [1, 2, 8]


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="one of keep-first, reuse-distance, not 'lru'"):
        Cooperation(0, 1, alike, {}.get, policy="lru")
    with pytest.raises(ConfigError, match="needs an order known in advance"):
        Cooperation(0, 1, alike, {}.get)


class Watched(Hosts):
    """Looks at every use for what must never happen."""

    samples = 0
    ends = False

    def use(self, host: int, key: int) -> None:
        before = dict(self.listed)
        copies = {other for other in self.residents(host) if not self.caches[host].policy.is_listed(other)}
        super().use(host, key)
        self.check()
        lost = {other for other, at in before.items() if at == host and other not in self.listed}
        if lost and not self.ends:  # nothing goes but for another; then copies go first
            assert not {other for other in copies if other in self.caches[host].ledger}

    def residents(self, host: int) -> list[int]:
        return [key for key in range(self.samples) if key in self.caches[host].ledger]

    def check(self) -> None:
        for host, cache in enumerate(self.caches):
            assert cache.ledger.stats().used_bytes <= cache.ledger.capacity_bytes
            assert sorted(cache.policy.listed()) == sorted(key for key, at in self.listed.items() if at == host)
            assert all(key in cache.ledger for key in cache.policy.listed())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.booleans(),
    st.sampled_from(["keep-first", "reuse-distance"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_nothing_is_too_much_and_no_last_copy_goes_while_there_are_others(
    hosts: int, ranks: int, ahead: int, ends: bool, policy: str, rng: random.Random
) -> None:
    samples, epochs = rng.randint(4, 20), 5
    sizes = [rng.choice([1, 1, 2, 5]) for _ in range(samples)]
    capacities = [rng.randint(0, sum(sizes)) for _ in range(hosts)]
    shares = shares_of(Drawn(samples, rng.randint(0, 99)), hosts, ranks, epochs if ends else None)
    watched = Watched(shares, capacities, policy, sizes)
    watched.samples, watched.ends = samples, ends
    for epoch in range(epochs):
        counts = watched.play(epoch, ahead, within=rng.randint(0, 9))
        for host, count in enumerate(counts):
            assert count.uses == count.service_hits + count.peer_hits + count.storage_reads
            assert count.uses == len(shares.of_host(host, epoch))


def live(shares: Shares, capacity: int, batch: int, every: int, epochs: int, after: int) -> tuple[float, float]:
    """Hosts as they are live: each rank orders whole batches, ranks are out of step, and the directory comes late.

    Who is asked for something that another host has taken over names that host. Demand hits and reads from storage.
    """
    hosts = shares.hosts
    told: dict[int, int] = {}
    truth: dict[int, int] = {}
    caches = [
        Cooperation(host, capacity, alike, lambda key, me=host: None if told.get(key) == me else told.get(key), shares)
        for host in range(hosts)
    ]
    rng = random.Random(0)
    hits = reads = uses = ordered = 0
    for epoch in range(epochs):
        for cache in caches:
            cache.begin(epoch)
        rows = shares.epoch_ids(epoch).reshape(-1, shares.world)
        for start in range(0, len(rows), batch):
            for rank in rng.sample(range(shares.world), shares.world):
                host, ids = shares.host_of_rank[rank], rows[start : start + batch, rank].tolist()
                missing = [key for key in ids if key not in caches[host].ledger]
                choice = caches[host].decide(ids)
                from_storage = [key for key in missing if truth.get(key, host) == host]
                for key in missing:
                    if key not in from_storage:
                        caches[truth[key]].served(key, is_taken_over=key in choice.listed)
                truth.update(dict.fromkeys(choice.listed, host))
                for key in choice.forgotten:
                    if truth.get(key) == host:
                        del truth[key]
                if epoch >= after:
                    hits, reads, uses = hits + len(ids) - len(missing), reads + len(from_storage), uses + len(ids)
                ordered += 1
                if ordered % every == 0:
                    told.clear()
                    told.update(truth)
    return hits / uses, reads / uses


def test_live_hosts_find_what_the_replay_finds() -> None:
    samples = 2400
    shares = shares_of(Drawn(samples, seed=1), hosts=4, ranks=2)
    capacity = round(0.296 * samples)
    hits, reads = live(shares, capacity, batch=8, every=24, epochs=18, after=9)
    replayed = replay_hosts(shares, [capacity] * 4, epochs=18).total(after=9)
    assert hits == pytest.approx(replayed.demand_hits / replayed.uses, abs=0.02)
    assert reads <= 0.001
