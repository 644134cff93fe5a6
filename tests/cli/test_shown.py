"""What `analyze` shows on a terminal while it measures leaves the words of others as they are."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.shown import LINE_AGAIN, Shown
from stoker.run.progress import AnalysisProgress


class Follower:
    """An analysis that stands still."""

    def look(self) -> AnalysisProgress:
        return AnalysisProgress("reading from storage with rests", 5.0, 7.0, 0.5, ())


@pytest.mark.parametrize("width", [24, 80])
def test_other_words_stand_apart_from_the_line(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    follower: Any = Follower()
    shown = Shown(follower, "train.py", tmp_path / "page.html")
    before, _, after = capsys.readouterr().err.partition("stoker: there is no browser")
    assert before.endswith(LINE_AGAIN)
    assert after.endswith("page.html\n")
    shown._due = 0.0
    shown()
    line = capsys.readouterr().err.removeprefix(LINE_AGAIN)
    assert line.endswith("  ")  # the script prints next
    assert len(line) < width
