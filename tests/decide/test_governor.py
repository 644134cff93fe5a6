"""The governor: who moves, when nobody does, and that it comes to rest."""

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.decide.governor import Governed, Move, Place, RankQueue, WorkerStage, govern


def seconds(alone_s: float, most: int = 16) -> np.ndarray:
    return np.array([math.inf if alone_s else 0.0, *(alone_s / count for count in range(1, most + 1))])


def rank(queued: int = 2, **stages: float) -> RankQueue:
    known: dict[str, WorkerStage] = {"reading": "reading", "preparing": "preparing", "both": "both"}
    return RankQueue(queued, {known[name]: seconds(alone_s) for name, alone_s in stages.items()})


def moved(current: Mapping[Place, int], found: Governed) -> dict[Place, int]:
    after = dict(current)
    for move in found.moves:
        assert move.count > 0
        if move.source is not None:
            after[move.source] -= move.count
        if move.target is not None:
            after[move.target] = after.get(move.target, 0) + move.count
    assert min(after.values(), default=0) >= 0
    return after


FIRST, SECOND = Place(0, "both"), Place(1, "both")


def test_workers_go_to_the_rank_whose_samples_cost_more_and_back() -> None:
    slow, quick = rank(both=1.6), rank(both=0.4)
    current = {FIRST: 4, SECOND: 4}
    found = govern([slow, quick], current, budget=8, train_s=0.26, since_s=9)
    assert found.moves == (Move(SECOND, FIRST, 2),)
    assert (found.late_s, found.late_after_s) == (pytest.approx(0.14), pytest.approx(1.6 / 6 - 0.26))
    back = govern([quick, slow], moved(current, found), budget=8, train_s=0.26, since_s=9)
    assert back.moves == (Move(FIRST, SECOND, 4),)


def test_nothing_moves_for_little_or_too_soon_or_without_need() -> None:
    current = {FIRST: 8, SECOND: 8}
    nearly = [rank(both=1.0), rank(both=0.8)]
    assert govern(nearly, current, budget=16, train_s=0.01, since_s=9).reason == "too little would be gained"
    assert govern(nearly, current, budget=16, train_s=0.01, since_s=9, worth=0.05).moves == (Move(SECOND, FIRST, 1),)
    uneven = [rank(both=2.0), rank(both=0.1)]
    soon = govern(uneven, current, budget=16, train_s=0.1, since_s=0.1, period_s=0.5)
    assert (soon.moves, soon.reason) == ((), "workers moved 0.1 s ago")
    assert govern(uneven, current, budget=16, train_s=9.0, since_s=9).reason == "nobody is late"


def test_between_reading_and_preparing() -> None:
    places = [Place(number, stage) for number in (0, 1) for stage in ("reading", "preparing")]
    current = dict(zip(places, (1, 3, 1, 3), strict=True))
    found = govern(
        [rank(reading=0.9, preparing=0.3), rank(reading=0.1, preparing=0.3)], current, budget=8, train_s=0.3, since_s=9
    )
    after = moved(current, found)
    assert after[places[0]] == 3
    assert sum(after.values()) == 8
    assert found.late_after_s == 0.0


def test_a_queue_without_anyone_gets_somebody_at_once_although_nobody_is_late() -> None:
    found = govern([rank(both=0.1), rank(both=0.1)], {FIRST: 2}, budget=2, train_s=9.0, since_s=9)
    assert found.moves == (Move(FIRST, SECOND, 1),)


def test_a_budget_that_changes() -> None:
    ranks = [rank(both=1.0), rank(both=1.0)]
    fewer = govern(ranks, {FIRST: 4, SECOND: 4}, budget=6, train_s=0.1, since_s=0.0)
    assert moved({FIRST: 4, SECOND: 4}, fewer) == {FIRST: 3, SECOND: 3}
    assert all(move.target is None for move in fewer.moves)
    more = govern(ranks, {FIRST: 1, SECOND: 1}, budget=6, train_s=0.1, since_s=9)
    assert moved({FIRST: 1, SECOND: 1}, more) == {FIRST: 3, SECOND: 3}


def test_the_workers_of_a_rank_that_ended_are_there_for_the_others() -> None:
    found = govern([rank(both=1.0)], {FIRST: 2, SECOND: 2}, budget=4, train_s=0.1, since_s=9)
    assert found.moves == (Move(SECOND, FIRST, 2),)
    fewer = govern([rank(both=1.0)], {FIRST: 2, SECOND: 2}, budget=2, train_s=9.0, since_s=9)
    assert fewer.moves == (Move(SECOND, None, 2),)


def test_fewer_workers_than_places_are_left_alone() -> None:
    found = govern([rank(both=1.0)] * 3, {FIRST: 1, SECOND: 1}, budget=2, train_s=0.1, since_s=9)
    assert found.moves == ()
    assert found.reason == "2 workers for 3 places: they serve all in turn"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 16), st.booleans())
def test_it_comes_to_rest_within_the_budget_and_leaves_no_queue_alone(
    seed: int, ranks: int, budget: int, together: bool
) -> None:
    draw = random.Random(seed)
    stages: list[str] = ["both"] if together else ["reading", "preparing"]
    seen = [
        rank(draw.randint(0, 3), **{stage: draw.choice([0.0, draw.uniform(0.01, 2.0)]) for stage in stages})
        for _ in range(ranks)
    ]
    places = [Place(number, stage) for number, one in enumerate(seen) for stage in one.seconds]
    current = {place: draw.randint(0, 4) for place in places}
    train_s = draw.uniform(0.01, 1.0)
    worth = draw.uniform(0, 0.5)
    found = govern(seen, current, budget=budget, train_s=train_s, since_s=9, worth=worth)
    after = moved(current, found)
    assert sum(after.values()) <= budget
    asking = [place for place in places if seen[place.rank].queued and seen[place.rank].seconds[place.stage][-1] > 0]
    if len(asking) <= budget:
        assert all(after[place] >= 1 for place in asking)
    if sum(current.values()) <= budget:
        assert found.late_after_s <= found.late_s
    again = govern(seen, after, budget=budget, train_s=train_s, since_s=9, worth=worth)
    assert again.moves == ()
    assert again.late_s == found.late_after_s
