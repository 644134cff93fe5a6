"""Replay: foresight against a plain search, and the known hit ratios of each policy."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cache.policy import FAR
from stoker.cache.replay import BY_FREQUENCY, EpochReplay, Foresight, ReplayResult, far_enough, replay, taken
from stoker.errors import ConfigError
from stoker.order import Drawn
from stoker.plan import CACHE_POLICIES

SAMPLES = 8000


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=7), st.integers(0, 3), st.randoms())
def test_foresight_equals_a_search(epochs: list[list[int]], horizon: int, rng: random.Random) -> None:
    drawn: list[int] = []

    def epoch_ids(epoch: int) -> np.ndarray:
        drawn.append(epoch)
        return np.array(epochs[epoch] if epoch < len(epochs) else [], np.int64)

    foresight = Foresight(epoch_ids, horizon)
    for epoch in range(len(epochs)):
        if rng.random() < 0.2:
            continue  # epochs may be left out, and broken off
        window = range(epoch, min(epoch + horizon + 1, len(epochs)))
        uses = [((number, place), key) for number in window for place, key in enumerate(epochs[number])]
        foresight.begin(epoch)
        place = 0
        while True:
            for key in range(8):
                coming = [position for position, used in uses if used == key and position >= (epoch, place)]
                assert foresight.next_use(key) == ((coming[0][0] << 40) + coming[0][1] if coming else FAR)
            if place >= len(epochs[epoch]) or rng.random() < 0.1:
                break
            count = rng.randint(1, 3)
            foresight.advance(count)
            place += count
    assert len(drawn) == len(set(drawn))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=3, max_size=3), st.randoms(use_true_random=False))
def test_uses_may_be_made_in_another_order(epochs: list[list[int]], rng: random.Random) -> None:
    foresight, in_order = (Foresight(lambda epoch: np.array(epochs[epoch], np.int64), 1) for _ in range(2))
    for epoch in (0, 1):
        foresight.begin(epoch)
        in_order.begin(epoch)
        assert [foresight.at(place) for place in range(17)] == (epochs[epoch] + epochs[epoch + 1] + [None] * 17)[:17]
        for key in range(7):
            after = foresight.use_after_next(key)
            if epochs[epoch].count(key) > 1:
                assert after == (epoch << 40) + [place for place, used in enumerate(epochs[epoch]) if used == key][1]
            elif key in epochs[epoch]:
                assert after == ((epoch + 1 << 40) + epochs[epoch + 1].index(key) if key in epochs[epoch + 1] else FAR)
            else:
                assert after == FAR
        for key in rng.sample(epochs[epoch], len(epochs[epoch])):
            foresight.use(key)
        in_order.advance(len(epochs[epoch]))
        foresight.use(rng.randint(0, 6))  # a straggler's, of the epoch before
        assert [foresight.next_use(key) for key in range(8)] == [in_order.next_use(key) for key in range(8)]


def test_a_share_is_what_a_process_takes() -> None:
    order = Drawn(10, seed=3)
    shares = [taken(order, reader, 4)(5).tolist() for reader in range(4)]
    assert [len(ids) for ids in shares] == [3, 3, 3, 3]
    assert {key for ids in shares for key in ids} == set(range(10))
    with pytest.raises(ConfigError, match="reader 4 of 4"):
        taken(order, 4, 4)
    with pytest.raises(ConfigError, match="horizon"):
        Foresight(taken(order, 0, 4), -1)


def test_the_papers_example_of_four_samples_and_room_for_two() -> None:
    for seed in range(10):
        order = Drawn(4, seed)
        kept = replay(order, capacity=2, policy="keep-first")
        assert [epoch.bytes_from_storage for epoch in kept.epochs] == [4] + [2] * 9
        recent = replay(order, capacity=2, policy="lru")
        assert all(2 <= epoch.bytes_from_storage <= 4 for epoch in recent.epochs)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(CACHE_POLICIES), st.integers(0, 40), st.integers(0, 99))
def test_alone_no_policy_has_more_hits_than_there_is_room(policy: str, capacity: int, seed: int) -> None:
    result = replay(Drawn(40, seed), capacity=capacity, policy=policy, epochs=4)
    assert result.epochs[0].hits == 0
    assert all(epoch.hits <= capacity for epoch in result.epochs)
    if policy != "lru":
        assert all(epoch.hits == capacity for epoch in result.epochs[1:])


def test_bytes_from_storage_are_exactly_those_that_are_not_kept() -> None:
    rng = random.Random(0)
    sizes = [rng.randint(1, 1000) for _ in range(500)]
    room = capacity = sum(sizes) * 65 // 100
    kept = []
    for key in Drawn(500).epoch(0).tolist():
        if sizes[key] <= room:
            kept.append(key)
            room -= sizes[key]
    result = replay(Drawn(500), capacity=capacity, policy="keep-first", sizes=sizes)
    assert result.epochs[0] == EpochReplay(500, 0, sum(sizes))
    assert set(result.epochs[1:]) == {EpochReplay(500, len(kept), sum(sizes) - capacity + room)}
    assert room < 0.001 * capacity  # smaller ones filled the gap


@pytest.mark.parametrize(("x", "printed"), [(0.35, 0.070), (0.65, 0.283)])
def test_one_reader(x: float, printed: float) -> None:
    def ratio(policy: str) -> float:
        return replay(Drawn(SAMPLES), capacity=round(x * SAMPLES), policy=policy, epochs=4).hit_ratio()

    assert ratio("keep-first") == x
    assert ratio("reuse-distance") == x
    assert ratio("lru") == pytest.approx(x + (1 - x) * math.log(1 - x), abs=0.01)
    assert ratio("lru") == pytest.approx(printed, abs=0.01)


def steady(policy: str, readers: int, horizon: int | None = None) -> float:
    """Each reader has room for 0.296 of the data; the hit ratio once the cache has settled."""
    capacity = round(0.296 * SAMPLES)
    order = Drawn(SAMPLES, seed=1)
    return replay(order, capacity=capacity, policy=policy, readers=readers, epochs=32, horizon=horizon).hit_ratio(after=16)


@pytest.mark.parametrize(
    ("readers", "policy", "least", "most"),
    [
        (2, "lru", 0.10, 0.10),
        (4, "lru", 0.19, 0.19),
        (8, "lru", 0.250, 0.250),
        (2, "keep-first", 0.30, 0.30),
        (4, "keep-first", 0.29, 0.29),
        (8, "keep-first", 0.298, 0.298),
        (2, "reuse-distance", 0.55, 0.55),
        (4, "reuse-distance", 0.61, 0.61),
        (8, "reuse-distance", 0.60, 0.64),
    ],
)
def test_readers_of_a_changing_share(readers: int, policy: str, least: float, most: float) -> None:
    assert least - 0.01 <= steady(policy, readers) <= most + 0.01


@pytest.mark.parametrize(
    ("readers", "least", "most"), [(1, 0.296, 0.296), (2, 0.35, 0.35), (4, 0.36, 0.38), (8, 0.37, 0.43)]
)
def test_by_frequency_is_between_keeping_and_knowing(readers: int, least: float, most: float) -> None:
    capacity = round(0.296 * SAMPLES)
    result = replay(Drawn(SAMPLES, seed=1), capacity=capacity, policy=BY_FREQUENCY, readers=readers, epochs=50)
    assert least - 0.01 <= result.hit_ratio(after=16) <= most + 0.01


def test_a_shorter_horizon_has_fewer_hits() -> None:
    ratios = [steady("reuse-distance", 8, horizon) for horizon in (1, 2, 4, 8)]
    assert ratios == sorted(ratios)
    assert steady("reuse-distance", 8, far_enough(8)) == pytest.approx(ratios[-1], abs=0.01)


def test_a_result_without_settled_epochs_has_no_ratio() -> None:
    assert ReplayResult(()).hit_ratio() == 0.0
    assert replay(Drawn(0), capacity=1, policy="lru").hit_ratio() == 0.0
