"""What counts as the training loop's own time, by a clock that passes only when told to."""

import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.tries import HANG_S

from stoker.measure.series import Series
from stoker.run.loop_clock import LoopClock, Phase
from stoker.testing import FakeClock


class Loop:
    """A training loop: every iteration works for so long, after it waited for so long."""

    def __init__(
        self, work_s: float = 0.01, wait_s: float = 0.0, *, phase_s: float = 1.0, rounds: int = 2, **options: object
    ):
        self.time = FakeClock()
        self.work_s, self.wait_s = work_s, wait_s
        self.series = Series()
        settings = {"deadline": math.inf, "iterations": 10**9, **options}
        self.clock = LoopClock(rounds=rounds, batch=16, phase_s=phase_s, **settings)  # type: ignore[arg-type]
        self.iterations = 0

    def begin(self, phase: Phase) -> None:
        self.clock.begin(phase, self.series, self.time.now())
        self.clock.given(self.time.now())

    def iterate(self, between: Callable[[], None] = lambda: None) -> None:
        """Work on the batch that was given, do something else perhaps, and ask for the next."""
        self.time.advance(self.work_s)
        between()
        self.clock.asked(self.time.now())
        if not self.clock.is_over:
            self.time.advance(self.wait_s)
            self.clock.given(self.time.now())
            self.iterations += 1

    def run(self, phase: Phase, between: Callable[[int], None] = lambda number: None, most: int = 100_000) -> float:
        """Samples per second, as found."""
        self.begin(phase)
        for number in range(most):
            self.iterate(lambda number=number: between(number))
            if self.clock.is_over:
                return self.series.rate
        raise AssertionError("the phase does not end")


def test_waiting_and_work_both_count() -> None:
    assert Loop(0.01, 0.03).run(Phase("cached")) == pytest.approx(16 / 0.04)


def test_only_work_counts_where_batches_are_there_already() -> None:
    assert Loop(0.01, 0.03).run(Phase("alone", without_waiting=True)) == pytest.approx(16 / 0.01)


def test_validation_in_the_middle_of_an_epoch_does_not_count() -> None:
    loop = Loop(0.01)

    def validate(number: int) -> None:
        if number % 7 == 0:
            loop.clock.other()
            loop.time.advance(5.0)

    assert loop.run(Phase("alone")) == pytest.approx(1600)
    assert loop.run(Phase("alone"), validate) == pytest.approx(1600)


def test_what_comes_between_epochs_does_not_count() -> None:
    loop = Loop(0.01)

    def end(number: int) -> None:
        if number % 10 == 9:
            loop.clock.asked(loop.time.now())
            loop.clock.ended(loop.time.now())
            loop.time.advance(30.0)

    assert loop.run(Phase("cached", ahead=6), end) == pytest.approx(1600)


def test_what_was_prepared_during_a_break_does_not_count() -> None:
    """Workers go on while the script validates: the next batches come at once, and say nothing of how fast workers are."""
    loop = Loop(0.002, 0.03)
    ready = 0

    def validate(number: int) -> None:
        nonlocal ready
        if number % 25 == 0:
            loop.clock.other()
            loop.time.advance(1.0)
            ready = 6
        loop.wait_s = 0.0 if ready else 0.03
        ready = max(0, ready - 1)

    assert loop.run(Phase("cached", ahead=6), validate) == pytest.approx(16 / 0.032, rel=0.02)


def test_a_short_break_costs_few_iterations() -> None:
    loop = Loop(0.01)
    loop.begin(Phase("cached", ahead=100))
    for number in range(2000):
        loop.iterate(loop.clock.other if number % 50 == 49 else lambda: None)
        if loop.clock.is_over:
            break
    assert loop.clock.is_over
    assert loop.series.rate == pytest.approx(1600)


def test_chunks_are_long_enough_and_whole_rounds() -> None:
    loop = Loop(0.003, rounds=4)
    loop.run(Phase("alone"))
    assert all(seconds >= 0.1 for seconds in loop.series.times)
    assert all(amount / 16 % 4 == 0 for amount in loop.series.amounts)


def test_chunks_hold_whole_accumulated_updates() -> None:
    loop = Loop(0.01, rounds=1)

    def update(number: int) -> None:
        if number % 6 == 5:
            loop.clock.updated()
            loop.time.advance(0.05)

    loop.run(Phase("warming up", batches=12), update)
    rate = loop.run(Phase("alone"), update)
    assert all(amount / 16 % 6 == 0 for amount in loop.series.amounts)
    assert rate == pytest.approx(16 * 6 / 0.11)
    assert loop.series.width < 0.01


@pytest.mark.parametrize("work_s", [0.0005, 0.01, 0.3, 5.0, 40.0])
def test_a_phase_takes_no_longer_than_it_may(work_s: float) -> None:
    loop = Loop(work_s, phase_s=6.0, rounds=8)
    rate = loop.run(Phase("cached", ahead=24))
    assert rate == pytest.approx(16 / work_s, rel=0.01)
    assert loop.time.now() <= max(3 * 6.0, 3 * work_s)


def test_after_the_deadline_a_phase_ends_with_what_it_has() -> None:
    loop = Loop(0.01, phase_s=100.0, deadline=2.0, iterations=10**9)
    loop.clock._enough = 10**9
    loop.begin(Phase("alone"))
    rng = random.Random(0)
    while not loop.clock.is_over:
        loop.work_s = rng.uniform(0.001, 0.1)  # never sure
        loop.iterate()
    assert 2.0 <= loop.time.now() < 4.0
    assert loop.series.times


def test_the_warm_up_is_short_where_iterations_are_long() -> None:
    loop = Loop(30.0, phase_s=6.0)
    loop.begin(Phase("warming up", batches=5))
    loop.iterate()
    assert loop.clock.is_over
    assert not loop.series.times


def test_a_script_that_ends_leaves_what_it_had() -> None:
    loop = Loop(0.02)
    loop.begin(Phase("alone"))
    for _ in range(4):
        loop.iterate()
    with loop.clock.counting_what_is_under_way() as is_timed:
        assert is_timed
        assert loop.series.rate == pytest.approx(800)
        assert loop.series.width == 1.0  # one piece says little
    assert not loop.series.times


def test_nothing_that_was_timed_is_nothing() -> None:
    loop = Loop(0.02)
    loop.begin(Phase("cached", ahead=50))
    loop.iterate()
    with loop.clock.counting_what_is_under_way() as is_timed:
        assert not is_timed


class Together:
    """What several ranks answer each other. A rank that asks more often than the others fails."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=HANG_S)
        self._said: list[tuple[float, ...]] = [()] * ranks

    def rank(self, number: int) -> Callable[..., tuple[float, ...]]:
        def agree(*values: float) -> tuple[float, ...]:
            self._said[number] = values
            self._barrier.wait()
            largest = tuple(map(max, zip(*self._said, strict=True)))
            self._barrier.wait()
            return largest

        return agree


def test_the_slowest_rank_counts_and_all_end_together() -> None:
    """Whatever each of them did in between: only the first one validates here."""
    together = Together(2)
    loops = [Loop(0.01, agree=together.rank(0)), Loop(0.015, agree=together.rank(1))]

    def run(rank: int) -> tuple[float, int]:
        def between(number: int) -> None:
            if rank == 0 and number % 5 == 0:
                loops[0].clock.other()
                loops[0].time.advance(3.0)

        return loops[rank].run(Phase("cached", ahead=4), between), loops[rank].iterations

    with ThreadPoolExecutor(2) as pool:
        (first, first_count), (second, second_count) = pool.map(run, range(2))
    assert first == pytest.approx(16 / 0.015)
    assert second == pytest.approx(16 / 0.015)
    assert first_count == second_count


def test_a_loop_that_becomes_slow_does_not_outlast_its_time() -> None:
    """Its first iterations take 20 us, and chunks are made for these; then each takes 30 ms."""
    loop = Loop(20e-6, phase_s=1.0, deadline=60.0)
    loop.begin(Phase("alone"))
    for number in range(100_000):
        loop.work_s = 20e-6 if number < 40 else 0.03
        loop.iterate()
        if loop.clock.is_over:
            break
    assert loop.time.now() < 5
    assert loop.series.times
