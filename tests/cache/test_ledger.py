"""The ledger: what fits, who is passed by, and a state machine against a naive model, for every policy."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stoker.cache.ledger import Admission, Ledger
from stoker.cache.policy import FAR, KeepFirst, LeastRecent, make_policy
from stoker.errors import ConfigError
from stoker.plan import CACHE_POLICIES

KEYS = st.integers(0, 9)
GAPS = st.one_of(st.none(), st.integers(1, 40))


class LedgerMachine(RuleBasedStateMachine):
    """Samples are used, or offered ahead of their use, or lost. The model is a list, the least recently used first."""

    @initialize(
        name=st.sampled_from(CACHE_POLICIES),
        capacity=st.integers(0, 30),
        sizes=st.lists(st.integers(0, 12), min_size=10, max_size=10),
    )
    def begin(self, name: str, capacity: int, sizes: list[int]) -> None:
        self.name, self.capacity, self.sizes = name, capacity, sizes
        self.now = 0
        self.future = dict.fromkeys(range(10), FAR)
        self.ledger = Ledger(capacity, make_policy(name, self.future.__getitem__))
        self.resident: list[int] = []
        self.counts: Counter[str] = Counter()

    def used(self) -> int:
        return sum(self.sizes[key] for key in self.resident)

    def victims(self, newcomer: int) -> list[int]:
        if self.name == "keep-first":
            return []
        if self.name == "lru":
            return self.resident
        farther = [key for key in self.resident if self.future[key] > self.future[newcomer]]
        return sorted(farther, key=lambda key: (-self.future[key], key))

    def expected(self, key: int) -> Admission:
        if key in self.resident:
            return Admission(kept=True)
        room, going = self.capacity - self.used(), []
        waiting = list(self.victims(key)) if self.sizes[key] <= self.capacity else []
        while room < self.sizes[key]:
            if not waiting:
                return Admission(kept=False)
            going.append(waiting.pop(0))
            room += self.sizes[going[-1]]
        return Admission(kept=True, evicted=tuple(going))

    def offer(self, key: int) -> None:
        expected = self.expected(key)
        assert self.ledger.admit(key, self.sizes[key]) == expected
        assert set(expected.evicted) <= set(self.resident)
        self.counts["bytes_missed"] += self.sizes[key]
        if expected.kept and key not in self.resident:
            self.resident = [other for other in self.resident if other not in expected.evicted] + [key]

    @rule(key=KEYS, gap=GAPS)
    def use(self, key: int, gap: int | None) -> None:
        self.now += 1
        self.future[key] = FAR if gap is None else self.now + gap
        if self.ledger.look(key):
            assert key in self.resident
            self.resident.remove(key)
            self.resident.append(key)
            self.counts["hits"] += 1
        else:
            assert key not in self.resident
            self.counts["misses"] += 1
            self.offer(key)

    @rule(key=KEYS)
    def offered_ahead(self, key: int) -> None:
        self.offer(key)

    @rule(key=KEYS, gap=st.integers(1, 40))
    def comes_into_sight(self, key: int, gap: int) -> None:
        if self.future[key] == FAR:
            self.future[key] = self.now + gap

    @rule(key=KEYS)
    def lost(self, key: int) -> None:
        self.ledger.forget(key)
        self.resident = [other for other in self.resident if other != key]

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        stats = self.ledger.stats()
        assert stats.used_bytes == self.used() <= self.capacity
        assert stats.items == len(self.ledger) == len(self.resident)
        assert all((key in self.ledger) == (key in self.resident) for key in range(10))
        assert all(getattr(stats, name) == self.counts[name] for name in ("hits", "misses", "bytes_missed"))


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_keep_first_passes_by_what_does_not_fit_and_still_takes_smaller_ones() -> None:
    ledger = Ledger(10, KeepFirst())
    assert [ledger.admit(key, size).kept for key, size in enumerate([6, 5, 3, 2, 1, 1])] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    assert ledger.stats().used_bytes == 10


def test_larger_than_the_capacity_evicts_nobody() -> None:
    ledger = Ledger(10, LeastRecent())
    ledger.admit(0, 10)
    assert ledger.admit(1, 11) == Admission(kept=False)
    assert 0 in ledger


def test_too_few_victims_and_nobody_goes() -> None:
    uses = {0: 50, 1: 5, 9: 10}
    ledger = Ledger(2, make_policy("reuse-distance", uses.__getitem__))
    ledger.admit(0, 1)
    ledger.admit(1, 1)
    assert ledger.admit(9, 2) == Admission(kept=False)
    assert 0 in ledger
    assert ledger.admit(9, 1) == Admission(kept=True, evicted=(0,))


def test_several_go_for_a_large_one() -> None:
    ledger = Ledger(10, LeastRecent())
    for key in range(5):
        ledger.admit(key, 2)
    ledger.look(0)
    assert ledger.admit(9, 5) == Admission(kept=True, evicted=(1, 2, 3))


def test_a_policy_that_names_one_twice_does_not_exceed_the_capacity() -> None:
    class Stammering(LeastRecent):
        def victims(self, newcomer: int) -> list[int]:
            return [key for key in super().victims(newcomer) for _ in range(2)]

    ledger = Ledger(4, Stammering())
    ledger.admit(0, 2)
    ledger.admit(1, 2)
    assert ledger.admit(2, 4) == Admission(kept=True, evicted=(0, 1))


@pytest.mark.parametrize("name", CACHE_POLICIES)
def test_impossible_sizes(name: str) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        Ledger(-1, make_policy(name, lambda key: FAR))
    with pytest.raises(ConfigError, match="sample 3"):
        Ledger(1, make_policy(name, lambda key: FAR)).admit(3, -1)
