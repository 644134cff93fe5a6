"""Steering: what is decided batch by batch before samples are read, with four readers that know their order."""

import pytest

from stoker.cache.replay import replay, taken
from stoker.cache.steering import Steering
from stoker.order import Drawn

SAMPLES, READERS, BATCH = 6000, 4, 32
CAPACITY = round(0.296 * SAMPLES)


def demand_hits(policy: str, epochs: int, after: int) -> float:
    """Of four readers with a cache each, which hold what was decided, and what was not forgotten."""
    order = Drawn(SAMPLES, seed=1)
    hits = uses = 0
    for reader in range(READERS):
        epoch_ids = taken(order, reader, READERS)
        steering = Steering(policy, CAPACITY, lambda ids: [1] * len(ids), epoch_ids, READERS)
        held: set[int] = set()
        for epoch in range(epochs):
            steering.begin(epoch, 0)
            ids = epoch_ids(epoch).tolist()
            for start in range(0, len(ids), BATCH):
                batch = ids[start : start + BATCH]
                if epoch >= after:
                    hits += len(held.intersection(batch))
                    uses += len(batch)
                kept, forgotten = steering.decide(batch)
                held.difference_update(forgotten)  # in the order in which a store does it
                held.update(kept)
                assert len(held) <= CAPACITY
    return hits / uses


def test_four_readers_find_what_they_use_soonest() -> None:
    found = demand_hits("reuse-distance", epochs=20, after=10)
    assert found == pytest.approx(0.61, abs=0.02)
    replayed = replay(
        Drawn(SAMPLES, seed=1), capacity=CAPACITY, policy="reuse-distance", readers=READERS, epochs=20
    ).hit_ratio(after=10)
    assert found == pytest.approx(replayed, abs=0.01)


def test_keeping_what_came_first_finds_as_much_as_fits() -> None:
    assert demand_hits("keep-first", epochs=8, after=2) == pytest.approx(0.30, abs=0.02)
