"""What is run by scripts/lanes.py: a few tests that failed beside others are tried once more by themselves."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TWICE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({failing}))
def test_fails_at_first(number):
    tried = Path(f"tried-{{number}}")
    if not tried.exists():
        tried.touch()
        assert False

def test_passes():
    pass
"""


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lanes", Path(__file__).parents[2] / "scripts" / "lanes.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    return module


def _failed(lanes: ModuleType, text: str) -> list[tuple[list[str], Path]]:
    Path("test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "test_it.py", "-o", "cache_dir=notes"]
    assert lanes.run(command).returncode == 1
    return [(command, Path("notes"))]


def test_a_test_that_fails_once_is_named_and_does_not_stand_for_all(
    lanes: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not lanes.still_failing(_failed(lanes, TWICE.format(failing=2)))
    told = capfd.readouterr().out
    assert "2 passed" in told, "a test that had passed was run again, or one that had failed was not"
    assert (
        "Failed at first, passed by itself: test_it.py::test_fails_at_first[0], test_it.py::test_fails_at_first[1]" in told
    )


def test_a_test_that_fails_twice_fails(lanes: ModuleType) -> None:
    assert lanes.still_failing(_failed(lanes, "def test_fails():\n    assert False\n"))


def test_many_are_not_tried_again(lanes: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert lanes.still_failing(_failed(lanes, TWICE.format(failing=lanes.FEW + 1)))
    assert "by itself" not in capfd.readouterr().out


def test_who_ended_without_a_note_has_failed(lanes: ModuleType) -> None:
    assert lanes.still_failing([(["true"], Path("nowhere"))])
