"""Whatever was done to a store before a run, the run ends, with the right bytes, and says that something was wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cache.damaging import ROOM, damaged_runs, fetch_all, filled, torn_runs
from tests.tries import HANG_S

from stoker.cache.cached import Cache


def run(shelf_dir: Path, count: int, seed: int) -> None:
    (shelf_dir / "template").mkdir()
    filled(shelf_dir / "template")
    assert not damaged_runs(shelf_dir / "template", shelf_dir, count, seed)


def test_damage_before_a_run(shelf_dir: Path) -> None:
    run(shelf_dir, 35, 0)


def test_damage_under_a_run(shelf_dir: Path) -> None:
    assert not torn_runs(shelf_dir, range(30), 0)


def test_a_tree_in_which_lmdb_cannot_delete(shelf_dir: Path) -> None:
    """Its cursors then raise something else than they should."""
    assert not torn_runs(shelf_dir, [13, 403], 77)


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


TORN_UNDER_A_LOADER = """
import sys
from pathlib import Path
import stoker
from tests.cache.damaging import make_values_endless
from tests.scripts.everything import Files
place, workers, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
(place / "data").mkdir(exist_ok=True)
options = {"cache": "1MB", "cache_dir": place / "shelf", "num_workers": workers, "workers": kind, "seed": 1}
with stoker.DataLoader(Files(str(place / "data")), 4, **options) as loader:
    for _ in range(2):
        assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(24))
        if sys.argv[4:]:
            (about,) = (place / "shelf").glob("*/*/about.json")
            make_values_endless(about.parent)
    print(loader.stats().cache_faults, loader.stats().hits)
"""


@pytest.mark.parametrize("workers", ["2 threads", "2 processes"])
def test_a_store_whose_tree_is_torn_under_a_loader(tmp_path: Path, workers: str) -> None:
    """A worker's death is an error; the training process's own comes with words of its last breath."""
    words = [sys.executable, "-c", TORN_UNDER_A_LOADER, str(tmp_path), *workers.split()]
    torn, after = (
        subprocess.run([*words, *more], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=HANG_S)
        for more in (["tear"], [])
    )
    (about,) = (tmp_path / "shelf").glob("*/*/about.json")
    assert torn.returncode in ((1,) if workers == "2 processes" else (-signal.SIGBUS, -signal.SIGSEGV)), torn.stderr
    assert f"the cache in {about.parent}" in torn.stderr
    assert after.stdout == "1 24\n", after.stderr
    assert f"the cache in {about.parent} is damaged" in after.stderr


@pytest.mark.soak
def test_500_damages_before_a_run(shelf_dir: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    run(shelf_dir, 500, seed)


@pytest.mark.soak
def test_500_damages_under_a_run(shelf_dir: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    assert not torn_runs(shelf_dir, range(500), seed)
