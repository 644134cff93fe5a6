"""The interval: the closed form, where a snapshot is taken, and how the interval follows what really happens."""

import math
import random

import pytest

from stoker.checkpoint.frequency import (
    CheckpointPace,
    Costs,
    SnapshotMode,
    choose,
    interval,
    overhead_at,
    profiled_iterations,
)


def by_brute_force(costs: Costs, budget: float) -> int:
    k = 1
    while costs.stall_s + max(0.0, costs.persist_s - k * costs.iteration_s) > budget * k * costs.iteration_s:
        k += 1
    return k


def test_interval_equals_brute_force() -> None:
    rng = random.Random(0)
    for _ in range(10_000):
        costs = Costs(rng.uniform(0.01, 1), rng.choice([0.0, rng.uniform(0, 2)]), rng.choice([0.0, rng.uniform(0, 20)]))
        budget = rng.choice([0.035, 0.05, rng.uniform(0.01, 0.5)])
        k = interval(costs, budget)
        expected = by_brute_force(costs, budget)
        # On the very edge the two may round differently.
        assert k == expected or math.isclose(overhead_at(min(k, expected), costs), budget, rel_tol=1e-9), (costs, budget)


def test_the_papers_example() -> None:
    assert interval(Costs(1.0, 1.0, 0.0), 0.05) == 20


@pytest.mark.parametrize(
    ("copy_s", "clone_s", "fits", "expected"),
    [
        (0.5, None, False, SnapshotMode("cpu", 0.0)),
        (1.5, None, False, SnapshotMode("cpu", 0.6)),
        (1.5, 0.1, True, SnapshotMode("gpu", 0.1)),
        (1.5, 0.1, False, SnapshotMode("cpu", 0.6)),
        (0.5, 0.1, True, SnapshotMode("cpu", 0.0)),
    ],
)
def test_where_a_snapshot_is_taken(copy_s: float, clone_s: float | None, fits: bool, expected: SnapshotMode) -> None:
    choice = choose(copy_s, clone_s, 1.0, 0.1, fits=fits)
    assert (choice.mode, pytest.approx(choice.stall_s)) == (expected.mode, expected.stall_s)


def test_how_long_is_watched_before_the_first() -> None:
    assert [profiled_iterations(epoch) for epoch in (100, 2_000, 10**6, None)] == [5, 20, 50, 50]


class Loop:
    """A loop whose iterations take one second alone, and more beside a persist."""

    def __init__(self, pace: CheckpointPace) -> None:
        self.pace = pace
        self.stall_s = 0.5
        self.persist_s = 2.0
        self.slowed = 1.1

    def one_interval(self) -> float:
        """Run until the next checkpoint; by how much this interval was slowed."""
        spent, left_s, count = 0.0, self.persist_s, 0
        while (
            count < self.pace.interval or left_s > 0
        ):  # a trigger waits for the one in flight, without holding the loop up
            seconds = self.slowed if left_s > 0 else 1.0
            stalled_s = self.stall_s if count == 0 else 0.0
            self.pace.iterated(seconds + stalled_s, stalled_s, beside=left_s > 0)
            left_s -= seconds
            spent += seconds + stalled_s
            count += 1
        self.pace.close_interval()
        return spent / count - 1


@pytest.mark.parametrize("budget", [0.05, 0.035])
def test_the_interval_follows_what_happens_in_both_directions(budget: float) -> None:
    pace = CheckpointPace(budget)
    for _ in range(20):
        pace.iterated(1.0, 0.0, beside=False)
    loop = Loop(pace)
    pace.plan(Costs(1.0, loop.stall_s, loop.persist_s))
    calm = pace.interval
    for _ in range(3):
        overhead = loop.one_interval()
    assert overhead <= budget + 0.01
    loop.persist_s, loop.slowed, loop.stall_s = 30.0, 1.3, 1.0  # somebody else writes to the disk
    over = [loop.one_interval() for _ in range(4)]
    assert over[0] > budget + 0.01
    assert over[3] <= budget + 0.01
    busy = pace.interval
    assert busy > calm
    loop.persist_s, loop.slowed, loop.stall_s = 2.0, 1.1, 0.5
    for _ in range(30):
        overhead = loop.one_interval()
    assert pace.interval < busy / 2
    assert overhead <= budget + 0.01


def test_a_given_interval_stays() -> None:
    pace = CheckpointPace(0.05, fixed=7)
    loop = Loop(pace)
    loop.slowed, loop.persist_s = 2.0, 50.0
    for _ in range(5):
        loop.one_interval()
    assert pace.interval == 7


def test_a_validation_between_two_iterations_is_not_taken_for_the_checkpoints_cost() -> None:
    pace = CheckpointPace(0.05)
    for number in range(200):
        pace.iterated(100.0 if number == 100 else 1.0, 0.0, beside=100 <= number < 110)
    pace.close_interval()
    assert pace.overhead < 0.01
