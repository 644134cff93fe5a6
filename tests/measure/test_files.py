"""Files are warm or cold on purpose, and it is known which."""

import multiprocessing
import os
from pathlib import Path

import pytest
from tests.tries import HANG_S

from stoker.measure import files

NOBODY = 65534


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    os.chmod(tmp_path, 0o755)
    paths = []
    for number in range(100):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(os.urandom(20_000))
        path.chmod(0o644)
        paths.append(str(path))
    return paths


def test_files_become_cold_and_warm_again(paths: list[str]) -> None:
    files.cool(paths, sync=True)
    for _ in range(5):  # asking does not make them warm
        assert files.resident(paths) == 0.0
    assert files.warm(paths) == files.sizes(paths) == 100 * 20_000
    assert files.resident(paths) == 1.0
    files.cool(paths[:50])
    assert files.resident(paths) == 0.5


def _as_somebody_else(folder: str, names: list[str], found: "multiprocessing.Queue[float]") -> None:
    os.chdir(folder)
    os.setuid(NOBODY)
    found.put(files.resident(names))
    files.cool(names)
    found.put(files.resident(names))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_files_of_somebody_else(paths: list[str]) -> None:
    files.cool(paths, sync=True)
    files.warm(paths)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    folder, names = os.path.dirname(paths[0]), [os.path.basename(path) for path in paths]
    process = context.Process(target=_as_somebody_else, args=(folder, names, found))
    process.start()
    assert found.get(timeout=HANG_S) == 1.0
    assert found.get(timeout=HANG_S) < 0.5  # a fast device may bring a page while it is asked for
    process.join()


def test_what_is_not_there_is_not_warm(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert files.resident([str(tmp_path / "nothing"), str(tmp_path / "empty")]) == 0.0
