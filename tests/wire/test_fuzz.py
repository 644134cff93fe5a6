import pytest
from tests.wire.fuzz import Outcome, attack


def check(outcome: Outcome) -> None:
    assert outcome.given_bytes == 0, outcome
    assert outcome.wrong == 0 and outcome.served > 0, outcome
    assert outcome.grown_bytes < 64 << 20 and outcome.threads < 100, outcome


@pytest.mark.parametrize("when", ["before", "after"])
def test_hostile_frames_get_nothing_and_do_no_harm(when: str) -> None:
    outcome = attack(when, 1500, seed=1)
    check(outcome)
    assert (outcome.refused if when == "before" else outcome.broken) > 1000


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_million_hostile_frames(when: str) -> None:
    outcome = attack(when, 1_000_000, seed=1)
    print(outcome)
    check(outcome)
