"""Whatever was done to a store before a run, the run ends, with the right bytes, and says that something was wrong."""

import os
from pathlib import Path

import pytest
from tests.cache.damaging import damaged_runs, filled


def run(shelf_dir: Path, count: int, seed: int) -> None:
    (shelf_dir / "template").mkdir()
    filled(shelf_dir / "template")
    assert not damaged_runs(shelf_dir / "template", shelf_dir, count, seed)


def test_damage_before_a_run(shelf_dir: Path) -> None:
    run(shelf_dir, 35, 0)


@pytest.mark.soak
def test_500_damages_before_a_run(shelf_dir: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    run(shelf_dir, 500, seed)
