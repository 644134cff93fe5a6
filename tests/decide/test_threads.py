"""The assignment of workers against brute force, its rules, and how long it takes."""

import itertools
import math
import random
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tries import fastest, seconds

from stoker.decide.loading import POOLS, Loading, Needs, SampleTime, alone
from stoker.decide.threads import Queue, assign, divide, in_proportion
from stoker.errors import ConfigError

BATCH = 32


def curve(draw: random.Random, most: int, alone_s: float, *, falls_back: bool = True) -> SampleTime:
    """Workers that add up, that add up to a limit, or that get in each other's way beyond a number."""
    best = most if draw.random() < 0.33 else draw.randint(1, most)
    points = {count: alone_s / count for count in range(1, best + 1)}
    if best < most:
        points[most] = alone_s / best * (draw.choice([1.0, draw.uniform(1.0, 2.5)]) if falls_back else 1.0)
    return SampleTime(points)


def host(draw: random.Random, gpus: int, workers: int, *, falls_back: bool = True) -> tuple[list[Queue], float]:
    """The queues of a host, some of them empty or behind, and a training time."""
    loading = Loading(
        here=alone(curve(draw, workers, 1e-4, falls_back=falls_back)),
        storage=alone(curve(draw, workers, draw.uniform(2e-3, 5e-2), falls_back=falls_back)),
        peer=alone(curve(draw, workers, draw.uniform(5e-4, 5e-3), falls_back=falls_back)),
        pools=draw.choice(POOLS),
    )
    queues = []
    for _ in range(gpus):
        here = draw.randint(0, BATCH)
        peer = draw.randint(0, BATCH - here)
        needs = Needs(here, peer, BATCH - here - peer) if draw.random() < 0.9 else Needs()
        queues.append(Queue(loading.seconds(needs, workers), draw.randint(0, 4), draw.choice([0.0, 0.01, 0.02])))
    return queues, draw.uniform(0.01, 0.4)


@cache
def everything(gpus: int, budget: int) -> np.ndarray:
    """Every assignment within the budget."""
    counts = np.array(list(itertools.product(range(budget + 1), repeat=gpus)))
    return counts[counts.sum(axis=1) <= budget]


def all_times(queues: list[Queue], train_s: float, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Every assignment within the budget: its workers, and the time of each queue."""
    counts = everything(len(queues), budget)
    times = [
        queue.seconds[counts[:, number]] + queue.other_s
        if queue.asks
        else np.full(len(counts), queue.other_s if queue.length else 0.0)
        for number, queue in enumerate(queues)
    ]
    return counts, np.maximum(train_s, np.stack(times, axis=1))


def test_no_assignment_is_better() -> None:
    draw = random.Random(17)
    searched = 0
    for _ in range(2000):
        gpus = draw.randint(1, 4)
        budget = draw.randint(gpus, 16)
        queues, train_s = host(draw, gpus, budget)
        found = assign(queues, train_s, budget)
        _, times = all_times(queues, train_s, budget)
        assert sum(found.workers) + found.spare == budget
        assert found.spare >= 0
        assert found.iteration_s == pytest.approx(times.max(axis=1).min())
        assert all(count >= 1 for count, queue in zip(found.workers, queues, strict=True) if queue.asks)
        searched += "late with" in found.reason
    assert searched > 400


def test_nor_has_any_that_is_as_fast_a_smaller_gap_or_fewer_workers() -> None:
    draw = random.Random(18)
    searched = 0
    while searched < 50:
        queues, train_s = host(draw, 3, 10, falls_back=False)
        found = assign(queues, train_s, 10)
        if "late with" not in found.reason:
            continue
        searched += 1
        counts, times = all_times(queues, train_s, 10)
        as_fast = times.max(axis=1) <= found.iteration_s * (1 + 1e-9)
        gaps = times[as_fast].max(axis=1) - times[as_fast].min(axis=1)
        assert found.gap_s <= gaps.min() + 1e-9
        assert sum(found.workers) == counts[as_fast].sum(axis=1).min()


def test_nor_is_any_division_between_preparing_and_loading() -> None:
    draw = random.Random(19)
    moved = 0
    for _ in range(150):
        gpus = draw.randint(1, 3)
        workers = draw.randint(gpus + 1, 12)
        queues, train_s = host(draw, gpus, workers)
        prepare = curve(draw, workers, draw.uniform(5e-4, 1e-2))
        found = divide(queues, train_s, workers, prepare, BATCH * gpus)
        best = math.inf
        for preparing in range(1, workers + 1):
            prepare_s = BATCH * gpus * prepare(preparing)
            later = [Queue(queue.seconds, queue.length, queue.other_s + prepare_s) for queue in queues]
            best = min(best, all_times(later, train_s, workers - preparing)[1].max(axis=1).min())
        assert found.loading.iteration_s == pytest.approx(best)
        assert found.preparing + sum(found.loading.workers) <= workers
        assert found.prepare_s == pytest.approx(BATCH * gpus * prepare(found.preparing))
        moved += "load instead" in found.reason
    assert moved > 10


def test_where_nobody_is_late_workers_are_in_proportion_to_the_queues() -> None:
    easy = np.array([math.inf, *[0.001] * 12])
    queues = [Queue(easy / range(1, 14), length) for length in (4, 2, 0, 1)]
    found = assign(queues, 1.0, 7)
    assert (found.workers, found.spare, found.iteration_s, found.gap_s) == ((4, 2, 0, 1), 0, 1.0, 0.0)
    assert "in proportion" in found.reason


def test_the_late_one_gets_the_workers_of_the_others() -> None:
    base = np.array([math.inf, *(1.0 / count for count in range(1, 9))])
    found = assign([Queue(base * 0.4), Queue(base * 2.0), Queue(base * 0.4)], 0.41, 8)
    assert found.workers == (1, 5, 1)
    assert found.spare == 1
    assert found.iteration_s == 0.41
    assert "queue 1" in found.reason


def test_nobody_gets_more_than_helps() -> None:
    peak = SampleTime({1: 1.0, 6: 1 / 6, 16: 0.4}).table(16)
    found = assign([Queue(peak), Queue(peak)], 0.01, 16)
    assert found.workers == (6, 6)
    assert found.spare == 4


def test_preparing_starts_at_its_best_number_and_gives_up_what_loading_lacks() -> None:
    prepare = SampleTime({count: 1e-4 / count for count in range(1, 7)} | {16: 1e-4 / 4})
    load = np.array([math.inf, *(1.0 / count for count in range(1, 16))])
    easy = divide([Queue(load * 0.01)] * 2, 0.1, 16, prepare, 64)
    assert easy.preparing == 6
    assert easy.reason == "preparing is fastest with 6"
    hard = divide([Queue(load * 0.6)] * 2, 0.1, 16, prepare, 64)
    assert (hard.preparing, hard.loading.workers) == (2, (7, 7))
    assert hard.reason == "preparing is fastest with 6; 4 of them load instead"


def test_fewer_workers_than_queues_serve_the_longest() -> None:
    table = np.array([math.inf, 1.0, 0.5])
    found = assign([Queue(table, 1), Queue(table, 3), Queue(table, 2)], 0.1, 2)
    assert found.workers == (0, 1, 1)
    assert found.iteration_s == math.inf
    assert found.reason == "2 workers for 3 queues: the longest first"
    assert assign([Queue(table, 1)], 0.1, 0).workers == (0,)
    assert assign([], 0.1, 2).spare == 2


def test_what_cannot_be_is_refused() -> None:
    table = np.array([math.inf, 1.0])
    with pytest.raises(ConfigError, match="give at least 3"):
        divide([Queue(table), Queue(table)], 1.0, 2, SampleTime({1: 1.0}), 2)
    with pytest.raises(ConfigError, match="times for 1 workers only, of 4"):
        assign([Queue(table)], 1.0, 4)
    with pytest.raises(ConfigError, match="training takes some time"):
        assign([Queue(table)], 0.0, 1)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 40))
def test_proportions(lengths: list[int], budget: int) -> None:
    given_ = in_proportion(lengths, budget)
    asking = sum(length > 0 for length in lengths)
    assert sum(given_) == (budget if asking else 0) or (sum(given_) < budget and budget <= asking)
    assert all((count > 0) == (length > 0) for count, length in zip(given_, lengths, strict=True) if budget >= asking)
    for one, other in itertools.combinations(range(len(lengths)), 2):
        if lengths[one] > lengths[other]:
            assert given_[one] >= given_[other]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 64))
def test_the_budget_is_kept_and_the_same_question_has_the_same_answer(seed: int, gpus: int, budget: int) -> None:
    queues, train_s = host(random.Random(seed), gpus, 64)
    found = assign(queues, train_s, budget)
    assert sum(found.workers) <= budget
    assert found == assign(queues, train_s, budget)
    assert found.iteration_s >= train_s


def test_a_decision_for_eight_gpus_and_64_workers_takes_less_than_5_ms() -> None:
    draw = random.Random(20)
    for _ in range(50):
        queues, train_s = host(draw, 8, 64)
        prepare = curve(draw, 64, draw.uniform(5e-4, 1e-2))
        decide = partial(divide, queues, train_s, 64, prepare, 256)
        assert fastest(lambda decide=decide: seconds(decide), 5e-3) < 5e-3
