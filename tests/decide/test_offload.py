"""How much other hosts should prepare: as good as trying every ratio, and nothing where it does not pay."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.decide.offload import Remote, best_ratio, decide, rate_at, workers_needed
from stoker.errors import ConfigError

rates = st.floats(1, 1e4)
costs = st.floats(0, 1.5)


@given(loop=rates, local=rates, rate=rates, cost=costs)
def test_no_other_ratio_is_faster_and_no_smaller_one_as_fast(loop: float, local: float, rate: float, cost: float) -> None:
    remote = Remote(rate, cost)
    ratio = best_ratio(loop, local, remote, margin=0)
    assert 0 <= ratio <= 1
    found = rate_at(ratio, loop, local, remote)
    grid = [rate_at(float(other), loop, local, remote) for other in np.linspace(0, 1, 1001)]
    assert found >= max(grid) * (1 - 1e-9)
    if ratio > 0.01:
        assert rate_at(ratio - 0.01, loop, local, remote) < found


@given(loop=rates, local=rates, rate=rates, cost=costs)
def test_a_margin_costs_nothing(loop: float, local: float, rate: float, cost: float) -> None:
    remote = Remote(rate, cost)
    found = rate_at(best_ratio(loop, local, remote), loop, local, remote)
    assert found >= rate_at(best_ratio(loop, local, remote, margin=0), loop, local, remote) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("rate", "cost", "ratio"),
    [
        pytest.param(100, 0, 0.5, id="as many cores as here"),
        pytest.param(300, 0, 0.75, id="three times as many"),
        pytest.param(300, 0.05, 0.78, id="three times as many, and receiving costs something"),
        pytest.param(43, 0, 0.30, id="a link that brings less than half of what this host prepares"),
    ],
)
def test_where_the_loop_could_take_anything(rate: float, cost: float, ratio: float) -> None:
    assert decide(1e6, 100, {"all": Remote(rate, cost)}).ratio == pytest.approx(ratio, abs=0.01)


def test_no_more_than_the_loop_takes() -> None:
    found = decide(150, 100, {"all": Remote(1000, 0)})
    assert found.ratio == pytest.approx(1.05 / 3)
    assert found.rate == 150
    assert "the loop would be the limit" in found.reason


def test_nothing_is_sent_away_without_need_or_gain() -> None:
    assert decide(109, 100, {"all": Remote(1000, 0)}).ratio == 0
    assert decide(90, 100, {"all": Remote(1000, 0)}).rate == 90
    little = decide(1000, 100, {"all": Remote(9, 0)})
    assert little.ratio == 0
    assert "would gain too little" in little.reason
    dear = decide(1000, 100, {"all": Remote(1000, 1.0)})
    assert dear.ratio == 0
    assert "costs this host as much as preparing it" in dear.reason
    assert decide(1000, 100, {}).reason == "there are no remote workers"


def test_the_way_that_is_fastest_and_of_equal_ones_the_one_that_sends_least() -> None:
    ways = {"prepare": Remote(200, 0.3), "read, prepare": Remote(200, 0.1), "all": Remote(50, 0.0)}
    assert decide(1000, 100, ways).part == "read, prepare"
    plenty = {"prepare": Remote(1000, 0.3), "all": Remote(1000, 0.0)}
    assert decide(150, 100, plenty).part == "all"


def test_so_many_workers_that_nobody_waits() -> None:
    assert workers_needed(400, 100, Remote(100, 0, workers=2)) == 6
    assert workers_needed(405, 100, Remote(100, 0, workers=2)) == 6, "a tenth of a worker is none"
    assert workers_needed(100, 100, Remote(100, 0)) == 0
    assert workers_needed(math.inf, 100, Remote(100, 1.2)) == 0


def test_rates_that_were_not_measured() -> None:
    with pytest.raises(ConfigError, match="measured first"):
        decide(0, 100, {})
