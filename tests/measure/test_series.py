"""Rates from the times at which reads ended."""

import itertools
import random
import statistics

import pytest

from stoker.measure.series import stretches


def bursts(first_s: list[float], count: int, size: int, every_s: float) -> list[float]:
    """So many at once, 0.2 ms apart, again and again."""
    starts = [*first_s, *(first_s[-1] + every_s * (number + 1) for number in range(count))]
    return [start + 2e-4 * (number + 1) for start in starts for number in range(size)]


def rate(ends: list[float], least_s: float = 0.3) -> float:
    return 1 / statistics.fmean(stretches(ends, least_s))


@pytest.mark.parametrize("until_s", [1.0, 1.27, 1.31, 1.5])
@pytest.mark.parametrize("first_s", [[0.0], [0.0, 0.04], [0.0, 0.02, 0.06]])
def test_a_quota_that_is_given_in_bursts(first_s: list[float], until_s: float) -> None:
    ends = [end for end in bursts(first_s, 20, 38, 0.1) if end < until_s]
    assert rate(ends) == pytest.approx(380, rel=0.001)


def test_stretches_are_as_long_as_asked() -> None:
    ends = bursts([0.0], 40, 10, 0.1)
    assert len(stretches(ends, 0.3)) == pytest.approx(4.0 / 0.4, abs=2)
    assert stretches(ends, 0.3) == pytest.approx([0.01] * len(stretches(ends, 0.3)))


def test_an_even_store() -> None:
    assert rate([0.005 * number for number in range(1, 400)]) == pytest.approx(200, rel=0.001)


@pytest.mark.parametrize("seed", range(5))
def test_a_store_of_random_times(seed: int) -> None:
    rng = random.Random(seed)
    ends = list(itertools.accumulate(rng.expovariate(500) for _ in range(5000)))
    assert rate(ends) == pytest.approx(4999 / (ends[-1] - ends[0]), rel=0.03)


def test_one_long_wait_among_short_ones_counts() -> None:
    ends = [0.005 * number + (0.1 if number > 200 else 0.0) for number in range(1, 400)]
    assert rate(ends) == pytest.approx(399 / ends[-1], rel=0.06)


def test_few() -> None:
    assert stretches([], 0.3) == []
    assert stretches([0.5], 0.3) == [0.5]
    assert stretches([1.0] * 14, 0.3) == [pytest.approx(1 / 14)]  # all readers wait for the same time
    assert stretches([1.0] * 14 + [2.0] * 14, 0.3) == [pytest.approx(1 / 14)]
