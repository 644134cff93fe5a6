"""What holds for every policy of a cache."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from stoker.cache.ledger import Ledger
from stoker.cache.policy import FAR, Policy


class Uses:
    """Samples that are used one after the other; `now` is the place of the one that is being used."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = keys
        self.now = -1

    def __iter__(self) -> Iterator[int]:
        for key in self.keys:
            self.now += 1
            yield key

    def next_use(self, key: int) -> int:
        """The place of its next use, or FAR."""
        return next((place for place in range(self.now + 1, len(self.keys)) if self.keys[place] == key), FAR)


class PolicyContract:
    """Subclass it and give `policy`; pytest finds the tests. `next_use` tells when a key is used next."""

    samples = 12

    def policy(self, next_use: Callable[[int], int]) -> Policy:
        """The policy to test, new and empty."""
        raise NotImplementedError

    def filled(self) -> Policy:
        """One that has seen every key but 0, which is the newcomer, used before all others."""
        policy = self.policy(lambda key: key * 7 % self.samples)
        for key in range(1, self.samples):
            policy.enter(key)
        return policy

    def test_victims_are_residents_named_once(self) -> None:
        """Only residents can make room, and each only once."""
        policy = self.filled()
        policy.leave(3)
        policy.leave(5)
        policy.enter(5)
        policy.touch(7)
        policy.touch(7)
        victims = list(policy.victims(0))
        assert len(victims) == len(set(victims))
        assert set(victims) <= set(range(1, self.samples)) - {3}

    def test_asking_changes_nothing(self) -> None:
        """A walk over the victims may end anywhere; the next one starts from the same best."""
        policy = self.filled()
        victims = list(policy.victims(0))
        for count in range(len(victims) + 1):
            assert list(islice(policy.victims(0), count)) == victims[:count]
        assert list(policy.victims(0)) == victims

    def test_an_empty_one_has_no_victims(self) -> None:
        """Neither at first nor when all have left."""
        policy = self.policy(lambda key: FAR)
        assert list(policy.victims(0)) == []
        policy.enter(1)
        policy.leave(1)
        assert list(policy.victims(0)) == []

    def test_strangers_change_nothing(self) -> None:
        """`touch` and `leave` of a key that is not resident change nothing."""
        policy = self.filled()
        victims = list(policy.victims(0))
        policy.touch(0)
        policy.leave(0)
        assert list(policy.victims(0)) == victims

    def test_a_ledger_keeps_its_capacity(self) -> None:
        """On random uses of samples of random sizes, and what is said to be evicted was resident."""
        for seed in range(20):
            rng = random.Random(seed)
            sizes = [rng.randint(0, 9) for _ in range(self.samples)]
            uses = Uses([rng.randrange(self.samples) for _ in range(300)])
            ledger = Ledger(rng.randint(0, 40), self.policy(uses.next_use))
            resident: set[int] = set()
            for key in uses:
                assert ledger.look(key) == (key in resident)
                if key not in resident:
                    admission = ledger.admit(key, sizes[key])
                    assert resident.issuperset(admission.evicted)
                    assert admission.kept or not admission.evicted
                    resident.difference_update(admission.evicted)
                    resident.update([key] if admission.kept else [])
                assert ledger.stats().used_bytes == sum(sizes[key] for key in resident) <= ledger.capacity_bytes
