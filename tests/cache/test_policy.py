"""Policies: the contract, who goes first under each, and reuse distance against the best that is possible at all."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cache.ledger import Ledger
from stoker.cache.policy import FAR, KeepFirst, LeastRecent, Policy, ReuseDistance, by_frequency, make_policy
from stoker.errors import ConfigError
from stoker.plan import CACHE_POLICIES
from stoker.testing import PolicyContract, Uses


class TestKeepFirst(PolicyContract):
    def policy(self, next_use: Callable[[int], int]) -> Policy:
        return KeepFirst()

    def test_nobody_goes(self) -> None:
        assert list(self.filled().victims(0)) == []


class TestLeastRecent(PolicyContract):
    def policy(self, next_use: Callable[[int], int]) -> Policy:
        return LeastRecent()

    def test_the_longest_unused_goes_first(self) -> None:
        policy = self.filled()
        policy.touch(1)
        policy.touch(3)
        assert list(policy.victims(0)) == [2, *range(4, self.samples), 1, 3]


class TestReuseDistance(PolicyContract):
    def policy(self, next_use: Callable[[int], int]) -> Policy:
        return ReuseDistance(next_use)

    def test_the_farthest_goes_first(self) -> None:
        victims = list(self.filled().victims(0))
        assert victims == sorted(range(1, self.samples), key=lambda key: -(key * 7 % self.samples))

    def test_a_newcomer_is_turned_away_by_those_used_sooner_or_as_soon(self) -> None:
        uses = {1: 10, 2: 20, 3: FAR}
        policy = ReuseDistance(lambda key: uses.get(key, 15))
        for key in uses:
            policy.enter(key)
        assert list(policy.victims(9)) == [3, 2]
        uses[9] = 20
        assert list(policy.victims(9)) == [3]
        uses[9] = FAR
        assert list(policy.victims(9)) == []

    def test_a_use_that_comes_into_sight_counts(self) -> None:
        uses = {1: FAR, 2: FAR, 3: 30, 9: 5}
        policy = ReuseDistance(uses.__getitem__)
        for key in (1, 2, 3):
            policy.enter(key)
        uses[1] = 20
        assert list(policy.victims(9)) == [2, 3, 1]
        assert list(policy.victims(9)) == [2, 3, 1]

    def test_memory_is_bounded_by_the_residents(self) -> None:
        uses = dict.fromkeys(range(100), 0)
        policy = ReuseDistance(uses.__getitem__)
        for now in range(10_000):
            uses[now % 100] = now + 100
            policy.enter(now % 100)
        assert len(policy._heap) <= 300

    def test_uses_that_did_not_take_place_are_forgotten(self) -> None:
        uses = {key: key for key in range(10)} | {99: 10**6}
        policy = ReuseDistance(uses.__getitem__)
        for key in range(10):
            policy.enter(key)
        uses[0] = FAR  # without being used: the epoch was broken off
        for now in range(1000):
            uses[1 + now % 9] = now
            policy.touch(1 + now % 9)
        assert list(policy.victims(99)) == [0]


def most_hits(trace: list[int], capacity: int) -> int:
    """Of all ways to evict or to pass by, the best."""

    @cache
    def best(place: int, resident: frozenset[int]) -> int:
        if place == len(trace):
            return 0
        key = trace[place]
        if key in resident:
            return 1 + best(place + 1, resident)
        if len(resident) < capacity:
            return max(best(place + 1, resident), best(place + 1, resident | {key}))
        swaps = [best(place + 1, resident - {victim} | {key}) for victim in resident]
        return max(best(place + 1, resident), *swaps)

    return best(0, frozenset())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=14), st.integers(1, 4))
def test_reuse_distance_has_as_many_hits_as_possible(trace: list[int], capacity: int) -> None:
    uses = Uses(trace)
    ledger = Ledger(capacity, ReuseDistance(uses.next_use))
    for key in uses:
        if not ledger.look(key):
            ledger.admit(key, 1)
    assert ledger.stats().hits == most_hits(trace, capacity)


def test_policies_by_name() -> None:
    kinds = [type(make_policy(name, lambda key: FAR)) for name in CACHE_POLICIES]
    assert kinds == [KeepFirst, ReuseDistance, LeastRecent]
    with pytest.raises(ConfigError, match="keep-first, reuse-distance, lru"):
        make_policy("fifo")
    with pytest.raises(ConfigError, match="seed"):
        make_policy("reuse-distance")


class TestByFrequency(PolicyContract):
    def policy(self, next_use: Callable[[int], int]) -> Policy:
        return by_frequency(lambda key: -next_use(key))

    def test_what_is_used_least_goes_first_and_only_for_what_is_used_more(self) -> None:
        uses = {1: 5, 2: 1, 3: 3, 4: 4}
        policy = by_frequency(uses.__getitem__)
        for key in (1, 2, 3):
            policy.enter(key)
        assert list(policy.victims(4)) == [2, 3]
