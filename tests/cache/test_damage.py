"""Whatever was done to a store before a run, the run ends, with the right bytes, and says that something was wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cache.damaging import ROOM, damaged_runs, fetch_all, filled, torn_runs

from stoker.cache.cached import Cache


def run(shelf_dir: Path, count: int, seed: int) -> None:
    (shelf_dir / "template").mkdir()
    filled(shelf_dir / "template")
    assert not damaged_runs(shelf_dir / "template", shelf_dir, count, seed)


def test_damage_before_a_run(shelf_dir: Path) -> None:
    run(shelf_dir, 35, 0)


def test_damage_under_a_run(shelf_dir: Path) -> None:
    assert not torn_runs(shelf_dir, 30, 0)


TORN = """
import sys
from pathlib import Path
from tests.cache.damaging import ROOM, Cache, fetch_all, make_values_endless
cache = Cache("numbers", ROOM, Path(sys.argv[1]))
fetch_all(cache)
make_values_endless(cache.folder)
print(cache.folder, flush=True)
fetch_all(cache)
"""


def test_a_store_whose_tree_is_torn_under_the_process_that_looks_at_it(shelf_dir: Path) -> None:
    """LMDB ends the process. It says in which store, and the next job distrusts that one."""
    words = [sys.executable, "-c", TORN, str(shelf_dir)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    folder = done.stdout.strip()
    assert done.returncode in (-signal.SIGBUS, -signal.SIGSEGV), done.stderr
    assert f"the cache in {folder}, which is damaged" in done.stderr
    cache = Cache("numbers", ROOM, shelf_dir)
    assert f"the cache in {folder} is damaged" in cache.tally.take()[6]
    fetch_all(cache)
    cache.close()


@pytest.mark.soak
def test_500_damages_before_a_run(shelf_dir: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    run(shelf_dir, 500, seed)


@pytest.mark.soak
def test_500_damages_under_a_run(shelf_dir: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    assert not torn_runs(shelf_dir, 500, seed)
