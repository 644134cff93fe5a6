"""kill -9 at any moment: the next start restores, redoes little, and ends where an uninterrupted run does."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoint.killing import assert_identical, finish, kill_and_go_on, start

EVERY = 3
Twin = Callable[[int], Path]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """Where a run of so many steps is that nobody interrupted: one for all tests."""
    known: dict[int, Path] = {}

    def run(steps: int) -> Path:
        if steps not in known:
            known[steps] = tmp_path_factory.mktemp("twin")
            finish(start(known[steps], steps, "--every", str(EVERY)))
        return known[steps]

    return run


def compare(place: Path, twin: Twin, kills: int, seed: int, *options: str) -> None:
    outcome = kill_and_go_on(place, kills, EVERY, seed, "--pause", "0.005", *options)
    assert_identical(place, twin(outcome["steps"]), outcome, EVERY)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(tmp_path: Path, twin: Twin, seed: int) -> None:
    compare(tmp_path, twin, 3, seed, *(["--workers", "2"] if seed == 2 else []))


@pytest.mark.soak
def test_killed_at_a_hundred_random_moments(tmp_path: Path, twin: Twin) -> None:
    compare(tmp_path, twin, 100, 3)
