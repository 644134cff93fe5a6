"""The time to load a batch: curves, portfolios, both readings of the published equation, and corrections."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decide.test_whatif import rates

from stoker.decide.loading import Loading, Needs, Portfolio, SampleTime, alone, correction
from stoker.errors import ConfigError
from stoker.profile import Rates


def even(alone_s: float, most: int = 8) -> SampleTime:
    """Workers that do not get in each other's way."""
    return SampleTime({count: alone_s / count for count in range(1, most + 1)})


def test_a_curve_is_straight_between_its_points_and_constant_beyond() -> None:
    curve = SampleTime({6: 1.0, 2: 3.0, 10: 2.0})
    assert [curve(count) for count in (1, 2, 4, 6, 8, 10, 50)] == [3.0, 3.0, 2.0, 1.0, 1.5, 2.0, 2.0]
    assert curve.best_workers == 6
    assert curve.table(2).tolist() == [math.inf, 3.0, 3.0]
    assert curve.scaled(2)(8) == 3.0


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: -1.0}, {1: math.inf}, {1: math.nan}])
def test_a_curve_of_nonsense_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(ConfigError, match="a curve needs times"):
        SampleTime(points)


def test_the_curve_of_the_nearest_size_is_taken() -> None:
    portfolio = Portfolio({10_000: even(1.0), 100_000: even(2.0)})
    assert [portfolio.nearest(size)(1) for size in (0, 54_999, 55_000, 55_001, 10**9)] == [1.0, 1.0, 1.0, 2.0, 2.0]
    with pytest.raises(ConfigError, match="needs a curve"):
        Portfolio({})


def test_the_two_readings() -> None:
    parts = alone(even(0.01)), alone(even(1.0)), alone(even(0.1))
    needs = Needs(here=20, storage=4, peer=8)
    shared = Loading(*parts).seconds(needs, 8)
    assert shared[0] == math.inf
    assert shared[1:] == pytest.approx([(20 * 0.01 + 4 * 1.0 + 8 * 0.1) / count for count in range(1, 9)])
    disjoint = Loading(*parts, pools="disjoint").seconds(needs, 8)
    assert disjoint[1:3] == pytest.approx(shared[1:3])  # one after the other: fewer workers than kinds
    assert disjoint[3] == pytest.approx(4.0)
    assert disjoint[8] == pytest.approx(0.8)  # six read from storage, and the peer's one has become the longest
    assert Loading(*parts).seconds(Needs(), 2).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="pools are one of shared, disjoint"):
        Loading(*parts, pools="other")


@given(
    st.lists(st.lists(st.floats(0.01, 10), min_size=6, max_size=6), min_size=3, max_size=3),
    st.tuples(*[st.integers(0, 9)] * 3),
)
def test_disjoint_pools_are_split_as_well_as_can_be(curves: list[list[float]], counts: tuple[int, int, int]) -> None:
    parts = [SampleTime(dict(enumerate(times, 1))) for times in curves]
    here, storage, peer = (alone(part) for part in parts)
    found = Loading(here, storage, peer, pools="disjoint").seconds(Needs(counts[0], counts[2], counts[1]), 6)
    asked = [number for number in range(3) if counts[number]]
    if len(asked) < 2:
        return
    for workers in range(len(asked), 7):
        splits = itertools.product(range(1, workers + 1), repeat=len(asked))
        best = min(
            max(counts[kind] * parts[kind](given) for kind, given in zip(asked, split, strict=True))
            for split in splits
            if sum(split) <= workers
        )
        assert found[workers] == pytest.approx(best)


def test_a_peer_that_was_not_measured_counts_as_storage() -> None:
    loading = Loading(alone(even(0.01)), alone(even(1.0)))
    assert loading.seconds(Needs(peer=3), 2)[2] == pytest.approx(1.5)


def test_fitted_from_what_was_measured() -> None:
    told = rates(storage_by_readers={1: 100.0, 2: 200.0}, cache=1000.0)
    loading = Loading.of_rates(told, 104_000)
    found = loading.seconds(Needs(storage=64, sample_bytes=104_000), 4)
    assert found[1:] == pytest.approx([0.64, 0.32, 0.32 * 2 / 3, 0.16])
    assert loading.seconds(Needs(here=64), 2)[2] == pytest.approx(0.064)
    used_up = Loading.of_rates(rates(storage_by_readers={1: 200.0, 2: 200.0}))
    assert used_up.seconds(Needs(storage=64), 8)[1:] == pytest.approx(0.32)
    nothing = Loading.of_rates(Rates(gpu=1.0, prep=1.0, storage=0.0, cache=0.0))
    assert nothing.seconds(Needs(here=1, storage=1), 2)[1:].tolist() == [0.0, 0.0]


def test_a_meter_corrects_it_part_of_the_way_and_ends_at_what_it_sees() -> None:
    loading = Loading(alone(even(0.01)), alone(even(1.0)), alone(even(0.1)))
    needs = Needs(10, 10, 10)
    truth = 3 * loading.seconds(needs, 4)
    seen = []
    for _ in range(30):
        predicted = loading.seconds(needs, 4)
        seen.append(predicted[2] / truth[2])
        loading = loading.corrected(float(predicted[2]), float(truth[2]))
    assert seen == sorted(seen)
    assert seen[1] < 0.5
    assert loading.seconds(needs, 4)[1:] == pytest.approx(truth[1:], rel=0.01)


def test_corrections_cancel_and_are_bounded() -> None:
    assert correction(1.0, 2.0) * correction(2.0, 1.0) == pytest.approx(1.0)
    assert correction(1.0, 1e9) == correction(1.0, 4.0) == pytest.approx(4**0.25)
    assert correction(0.0, 1.0) == correction(1.0, 0.0) == 1.0
    assert correction(1.0, 2.0, trust=1.0) == 2.0
    assert np.isfinite(correction(1e-300, 1e300))
