"""Before a script runs under `--checkpoint`: whether this process is it, and what it is told."""

import sys
from pathlib import Path

import pytest

from stoker.errors import ConfigError
from stoker.run.replace import _is_script
from stoker.run.restart.start import begin


@pytest.mark.parametrize(
    ("program", "command", "is_it"),
    [
        ("/home/me/train.py", ["train.py", "--epochs", "3"], True),
        ("/home/me/train.py", ["/bin/torchrun", "--nproc-per-node", "2", "train.py"], True),
        ("/home/me/project/train.py", ["-m", "project.train"], True),
        ("/home/me/project/__main__.py", ["-m", "project"], True),
        ("-m", ["-m", "project.train"], True),
        ("/home/me/export.py", ["train.py", "--epochs", "3"], False),
        ("/bin/some-tool", ["-m", "project.train"], False),
    ],
)
def test_which_processes_are_the_script(
    program: str, command: list[str], is_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs that it starts have the start-up hook, too; they have nothing to go on from, and own their files."""
    monkeypatch.setattr(sys, "argv", [program, "x"])
    assert _is_script(command) == is_it


def test_a_first_start_is_told_nothing(tmp_path: Path) -> None:
    assert begin(tmp_path / "place", ["train.py"], "--start-epoch {epoch}") == ["train.py"]


def test_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--restart-args knows"):
        begin(tmp_path, ["train.py"], "--start {number}")
    monkeypatch.setenv("STOKER_DISABLE", "1")
    with pytest.raises(ConfigError, match="STOKER_DISABLE"):
        begin(tmp_path, ["train.py"], None)
