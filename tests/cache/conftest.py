"""A shelf of its own for each test, on tmpfs, and small file systems that can be filled."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shelf_dir() -> Iterator[Path]:
    """A folder on tmpfs, as `cache_dir` for a loader."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the options given. CI runs as root; elsewhere the test says what is missing."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mounted-{len(mounted)}"
        place.mkdir()
        outcome = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if outcome.returncode:
            pytest.skip(f"mounting a tmpfs is not permitted here: {outcome.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)
