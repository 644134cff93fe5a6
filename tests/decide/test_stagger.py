"""The best offset of jobs that read the same data: against a fine grid, at the ends of the curve, and in every case."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decide.pairs import makespans

from stoker.decide.pace import IterationTimes, StaggerJob
from stoker.decide.side_by_side import SideBySide
from stoker.decide.stagger import OBJECTIVES, Stagger, stagger, stagger_many
from stoker.errors import ConfigError

POINTS = 400
PAPER = {
    "Inception-V3": IterationTimes(0.2587, 0.4899, 0.0),
    "ResNet-50": IterationTimes(0.3036, 0.4493, 0.0),
    "EfficientNet-B0": IterationTimes(0.2047, 0.5433, 0.0),
    "VGG-16": IterationTimes(0.4622, 0.2788, 0.0),
}
"""Seconds of computing and of waiting for storage in each of 1,560 iterations (the paper's Table I)."""


def drawn(draw: random.Random) -> tuple[StaggerJob, StaggerJob, float, int]:
    """A pair of any kind: limited by storage or not, contending or not, measured or not, with or without a whole cache."""
    link_s = draw.uniform(0.05, 1.0)
    size = draw.choice([1.0, 1.0, 0.5, 2.0])
    jobs = []
    for batch in (1.0, size):
        compute_s = draw.uniform(0.02, 1.3) * batch
        cold_s = max(0.0, link_s * batch - compute_s) if draw.random() < 0.5 else draw.uniform(0, 2) * batch
        cached_s = draw.choice([0.0, draw.uniform(0, 1) * cold_s])
        maybe = lambda value: value if draw.random() < 0.5 else None  # noqa: E731
        times = IterationTimes(
            compute_s,
            cold_s,
            cached_s,
            wait_both_cold_s=maybe(cold_s * draw.uniform(0.7, 2.5)),
            wait_beside_s=maybe(cached_s * draw.uniform(1, 1.3)),
            wait_both_cached_s=maybe(cached_s * draw.uniform(1, 1.3)),
            compute_beside_s=maybe(compute_s * draw.uniform(1, 1.4)),
            wait_apart_s=maybe(cold_s * draw.uniform(1, 2.5)),
        )
        jobs.append(StaggerJob(times, draw.choice([1, 1, 2, 3, 7]), round(200 / batch)))
    cached = draw.choice([1.0, 1.0, 0.0, draw.uniform(0.05, 0.95)])
    return jobs[0], jobs[1], cached, draw.choice([0, 0, 3])


def of(one: StaggerJob, other: StaggerJob, cached: float = 1.0, ahead: int = 0, **more: object) -> Stagger:
    epochs, iterations = (one.epochs, other.epochs), (one.iterations, other.iterations)
    return stagger(one.times, other.times, epochs=epochs, iterations=iterations, cached=cached, ahead=ahead, **more)  # type: ignore[arg-type]


def alone(job: StaggerJob, cached: float = 1.0) -> float:
    times = job.times
    cold_s, cached_s = times.compute_s + times.wait_cold_s, times.compute_s + times.wait_cached_s
    return job.iterations * (cold_s + (job.epochs - 1) * (cached * cached_s + (1 - cached) * cold_s))


def test_no_offset_of_a_fine_grid_is_better() -> None:
    draw = random.Random(20)
    sets = [drawn(draw) for _ in range(3000)]
    worst = 0.0
    for begin in range(0, len(sets), 60):
        some = sets[begin : begin + 60]
        cached, ahead = np.array([one[2] for one in some]), np.array([one[3] for one in some], float)
        best = np.full(len(some), np.inf)
        for first, second in ((0, 1), (1, 0)):
            jobs = [one[first] for one in some], [one[second] for one in some]
            spans = np.array([[alone(job, c)] for job, c in zip(jobs[0], cached, strict=True)])
            grid = makespans(*jobs, spans * np.linspace(0, 1, POINTS), cached, ahead)
            best = np.minimum(best, grid.min(1))
        found = np.array([of(*one).makespan_s for one in some])
        worst = max(worst, float((found / best - 1).max()))
    assert worst <= 0.001


def test_both_ways_to_play_a_pair_agree() -> None:
    draw = random.Random(4)
    for _ in range(150):
        one, other, cached, ahead = drawn(draw)
        stage = SideBySide([one, other], cached=cached, ahead=ahead)
        offsets = np.array([0.0, *(draw.uniform(0, 1.2) * alone(one) for _ in range(7))])
        played = [stage.play((0.0, offset)).makespan_s for offset in offsets]
        assert played == pytest.approx(
            makespans([one], [other], offsets[None], np.array([cached]), np.array([float(ahead)]))[0], rel=1e-9
        )


def test_the_curve_is_all_straight_between_its_corners() -> None:
    draw = random.Random(8)
    for _ in range(100):
        found = of(*drawn(draw))
        for (begin, before), (end, after) in itertools.pairwise(found.curve):
            part = draw.random()
            expected = before + part * (after - before)
            assert found.makespan(begin + part * (end - begin)) == pytest.approx(expected, rel=1e-6)


def test_the_ends_of_the_curve_are_exact_and_it_has_no_jump_at_the_beginning() -> None:
    draw = random.Random(5)
    for _ in range(300):
        one, other, _, _ = drawn(draw)
        both = SideBySide([one, other])
        cached_s = other.epochs * other.iterations * (other.times.compute_s + other.times.wait_cached_s)
        assert both.play((0.0, alone(one))).makespan_s == pytest.approx(alone(one) + cached_s, rel=1e-12)
        at_once, a_little_later = both.play((0.0, 0.0)).makespan_s, both.play((0.0, 1e-9)).makespan_s
        assert a_little_later == pytest.approx(at_once, abs=1e-3)
        assert both.play((1e-9, 0.0)).makespan_s == pytest.approx(at_once, abs=1e-3)


SLOW, FAST = IterationTimes(0.1, 0.9, 0.0), IterationTimes(0.3, 0.7, 0.0)


def test_at_the_best_offset_the_second_catches_up_as_the_first_pass_ends() -> None:
    found = of(StaggerJob(FAST, 1, 100), StaggerJob(SLOW, 1, 100))
    assert (found.order, found.offset_s) == ("A", pytest.approx(100 * (1.0 - 0.1)))
    assert found.makespan_s == pytest.approx(100.0)
    assert found.outcome.times_s == pytest.approx((100.0, 10.0))
    assert found.outcome.datasets_read == pytest.approx(1.0)


def test_a_job_that_cannot_catch_up_starts_at_once() -> None:
    slow = StaggerJob(IterationTimes(1.2, 0.0, 0.0), 1, 100)
    found = of(StaggerJob(FAST, 1, 100), slow)
    assert found.makespan_s == pytest.approx(120.0)
    assert min(found.outcome.starts_s) == max(found.outcome.starts_s) == 0.0 or found.order == "B"
    assert found.at(0.0).datasets_read == pytest.approx(1.0)


def test_a_faster_follower_takes_the_lead_and_leaves_a_slow_loop_behind() -> None:
    slow, fast = StaggerJob(IterationTimes(10, 0, 0), 1, 10), StaggerJob(IterationTimes(1, 4, 0), 1, 10)
    stage = SideBySide([slow, fast])
    played = stage.play((0.0, 20.0))
    assert played.ends[0][0] == pytest.approx(100.0), "it is not held up"
    caught_at = 20 + 2 / (1 - 1 / 10) * 1  # two batches ahead, at 1 s against 10 s for each
    done = (caught_at - 20) / 10
    assert played.ends[1][0] == pytest.approx(caught_at + (1 - done) * 50)
    assert played.datasets_read == pytest.approx(1.0)


def test_later_epochs_of_one_job_are_cached_while_the_other_is_in_its_first() -> None:
    stage = SideBySide([StaggerJob(FAST, 3, 100), StaggerJob(SLOW, 1, 100)])
    assert stage.play((0.0, 100.0)).ends[1][0] == pytest.approx(110.0)
    assert stage.play((0.0, 0.0)).ends[0][0] == pytest.approx(160.0)


def test_a_cache_that_is_too_small_lets_both_read_what_it_does_not_hold() -> None:
    jobs = [StaggerJob(IterationTimes(0.1, 0.9, 0.0), 2, 100)] * 2
    none, half = SideBySide(jobs, cached=0.0).play((0.0, 0.0)), SideBySide(jobs, cached=0.5).play((0.0, 0.0))
    assert none.datasets_read == pytest.approx(4.0)
    assert none.makespan_s == pytest.approx(400.0), "half of the link for each"
    assert half.datasets_read == pytest.approx(0.5 + 2 * 0.5 + 2 * 0.5)
    assert SideBySide(jobs, cached=1.0).play((0.0, 0.0)).datasets_read == pytest.approx(1.0)


def test_what_the_cache_has_already_is_not_read_again() -> None:
    jobs = [StaggerJob(SLOW, 1, 100)]
    played = SideBySide(jobs, ready=0.4).play([0.0])
    assert (played.makespan_s, played.datasets_read) == (pytest.approx(40 * 0.1 + 60 * 1.0), pytest.approx(0.6))


def test_jobs_that_prefetch_meet_before_they_are_at_one_batch() -> None:
    times = IterationTimes(0.1, 0.9, 0.0, wait_both_cold_s=1.9)
    near = SideBySide([StaggerJob(times, 1, 100)] * 2, ahead=10)
    assert near.play((0.0, 9.0)).ends[0][0] == pytest.approx(9 + 91 * 2.0), "9 batches apart"
    assert near.play((0.0, 9.0)).makespan_s > SideBySide(near.jobs).play((0.0, 9.0)).makespan_s


def test_other_objectives() -> None:
    draw = random.Random(11)
    for _ in range(200):
        pair = drawn(draw)
        least, balanced, times = (of(*pair, objective=objective) for objective in ("makespan", "balanced", "times"))
        assert balanced.makespan_s <= 1.01 * least.makespan_s * (1 + 1e-9)
        assert sum(balanced.outcome.times_s) <= sum(least.outcome.times_s) * (1 + 1e-6)
        assert sum(times.outcome.times_s) <= sum(balanced.outcome.times_s) * (1 + 1e-6)
        assert least.makespan_s <= min(least.simultaneous_s, least.sequential_s) * (1 + 1e-7)


def test_a_job_that_runs_already_is_not_overtaken_by_the_plan() -> None:
    one, other = StaggerJob(FAST, 1, 100), StaggerJob(SLOW, 1, 100)
    assert of(one, other, elapsed_s=20.0).offset_s == pytest.approx(90.0)
    late = of(one, other, elapsed_s=95.0)
    assert late.offset_s == pytest.approx(95.0)
    assert late.curve[0] == (0.0, pytest.approx(100.0)), "the curve shows offsets that have gone by"
    assert of(other, one, elapsed_s=1.0).order == "A"
    second = of(other, one, elapsed_s=95.0, runs="B")
    assert (second.order, second.outcome.starts_s) == ("B", (pytest.approx(95.0), 0.0))
    many = stagger_many([other, one, other], earliest_s=(95.0, 0.0, 20.0))
    assert many.starts_s[1] == 0.0 and many.starts_s[0] >= 95.0 and many.starts_s[2] >= 20.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.1, 3.0))
def test_slower_storage_never_makes_the_best_makespan_shorter(seed: int, factor: float) -> None:
    draw = random.Random(seed)
    jobs = []
    for _ in range(2):
        times = IterationTimes(draw.uniform(0.1, 1), draw.uniform(0, 1), 0.0)
        jobs.append((times, draw.randint(1, 3)))
    slower = [(IterationTimes(t.compute_s, t.wait_cold_s * (1 + factor), 0.0), epochs) for t, epochs in jobs]
    best, worse = (of(*(StaggerJob(t, epochs, 100) for t, epochs in some)).makespan_s for some in (jobs, slower))
    assert worse >= best * (1 - 1e-9)


def test_three_jobs_take_no_longer_than_at_once_and_less_of_the_devices() -> None:
    jobs = [(SLOW, 1, 100), (FAST, 1, 100), (IterationTimes(0.2, 0.8, 0.0), 1, 100)]
    found = stagger_many(jobs)
    assert found.makespan_s <= 1.0001 * found.simultaneous_s < found.sequential_s
    assert sum(found.outcome.times_s) <= 0.75 * 3 * found.simultaneous_s
    assert min(found.starts_s) == 0.0
    pair = stagger_many(jobs[:2])
    assert pair.makespan_s == pytest.approx(stagger(SLOW, FAST, iterations=(100, 100)).makespan_s)


def test_many_jobs_are_no_worse_than_a_grid_of_starts() -> None:
    draw = random.Random(2)
    for _ in range(5):
        pairs = [drawn(draw)[:2], drawn(draw)[:2]]
        jobs = [StaggerJob(job.times, job.epochs, 100) for job in (*pairs[0], pairs[1][0])]
        found = stagger_many(jobs)
        stage = SideBySide(jobs)
        grid = np.linspace(0, 1, 9)
        least = min(
            stage.play([0.0 if number == first else parts[number] * alone(jobs[first]) for number in range(3)]).makespan_s
            for first in range(3)
            for parts in itertools.product(grid, repeat=3)
        )
        assert found.makespan_s <= 1.01 * least


def test_the_papers_table() -> None:
    """All ordered pairs of its four models: the second is best started when the first has about a third left to read."""
    for one, other in itertools.permutations(PAPER, 2):
        jobs = [StaggerJob(PAPER[name], 1, 1560) for name in (one, other)]
        stage = SideBySide(jobs)
        first_s, cached_s = alone(jobs[0]), 1560 * jobs[1].times.compute_s
        meeting = 1 - cached_s / first_s
        assert 0.38 <= meeting <= 0.73
        at_meeting = stage.play((0.0, meeting * first_s))
        assert at_meeting.makespan_s == pytest.approx(first_s, rel=1e-9), "the second ends with the first"
        shape = [stage.play((0.0, part * first_s)).makespan_s for part in np.linspace(0, 1, 11)]
        falling = [span for part, span in zip(np.linspace(0, 1, 11), shape, strict=True) if part <= meeting]
        assert all(before >= after - 1e-6 for before, after in itertools.pairwise(falling))
        assert shape[0] <= 1.02 * first_s, "one reader for each item: no contention to speak of at offset 0"
        assert shape[-1] == pytest.approx(first_s + cached_s)
        found = of(*jobs)
        assert found.simultaneous_s / found.makespan_s <= 1.05, "the paper: at most 5 % less than at once"
        assert min(found.outcome.times_s) < 0.7 * max(found.outcome.times_s)


def test_loops_that_seemed_faster_beside_another_do_not_take_less_than_no_time_beside_several() -> None:
    times = IterationTimes(0.3, 0.5, 0.0, wait_beside_s=0.0, wait_both_cached_s=0.0, compute_beside_s=0.1)
    found = stagger_many([(times, 2, 10)] * 5)
    assert found.makespan_s >= 2 * 10 * 0.1
    assert min(found.outcome.times_s) > 0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="wait_cold_s"):
        IterationTimes(1.0, -1.0, 0.0)
    with pytest.raises(ConfigError, match="some time"):
        IterationTimes(0.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match="the loop and wait_beside_s are 0"):
        IterationTimes(0.0, 0.3, 0.3, wait_beside_s=0.0)
    with pytest.raises(ConfigError, match="the loop and wait_both_cold_s are 0"):
        IterationTimes(0.1, 0.3, 0.3, wait_both_cold_s=0.0, compute_beside_s=0.0)
    for bad in ({"cached": 1.5}, {"objective": "luck"}, {"epochs": (0, 1)}, {"elapsed_s": -1.0}, {"ready": -0.1}):
        with pytest.raises(ConfigError):
            stagger(SLOW, FAST, **{"iterations": (10, 10), **bad})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="each of two jobs"):
        stagger(SLOW, FAST, epochs=(1,), iterations=(10, 10))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no job"):
        stagger_many([])
    with pytest.raises(ConfigError):
        stagger(SLOW, FAST, iterations=(10, 10)).makespan(-1.0)


def test_a_job_that_gains_nothing_by_waiting_does_not_wait() -> None:
    times = IterationTimes(0.1, 0.5, 0.0)
    long_and_short = {"epochs": (5, 1), "iterations": (100, 100), "ready": 1.0}
    for objective in OBJECTIVES:
        best = stagger(times, times, objective=objective, **long_and_short)
        assert (best.offset_s, best.makespan_s) == (pytest.approx(0.0, abs=1e-4), pytest.approx(50.0))
    several = stagger_many([(times, 5, 100), (times, 1, 100), (times, 1, 100)], ready=1.0)
    assert several.starts_s == (0.0, pytest.approx(0.0, abs=1e-4), pytest.approx(0.0, abs=1e-4))
