"""kill -9 at any moment: the next start restores, redoes little, and ends where an uninterrupted run does."""

from pathlib import Path

import pytest
from tests.checkpoint.killing import assert_identical, finish, kill_and_go_on, start


def compare(tmp_path: Path, kills: int, seed: int, *options: str) -> None:
    every = 3
    place, twin = tmp_path / "killed", tmp_path / "twin"
    place.mkdir(), twin.mkdir()
    outcome = kill_and_go_on(place, kills, every, seed, "--pause", "0.005", *options)
    finish(start(twin, outcome["steps"], "--every", str(every)))
    assert_identical(place, twin, outcome, every)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    compare(tmp_path, 3, seed, *(["--workers", "2"] if seed == 2 else []))


@pytest.mark.soak
def test_killed_at_a_hundred_random_moments(tmp_path: Path) -> None:
    compare(tmp_path, 100, 3)
