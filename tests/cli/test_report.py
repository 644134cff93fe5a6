"""`stoker report` and `stoker analyze --html`, as a user runs them."""

import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_profile import SMALLEST

from stoker.cli import analyze, main
from stoker.measure.series import Series
from stoker.profile import Profile
from stoker.run.measured import Measured

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "profile.json").write_text(json.dumps(SMALLEST))
    return str(tmp_path / "profile.json")


def test_a_page(path: str, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "page.html"
    assert main(["report", path, "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"Written: {target}\n"
    page = target.read_text()
    assert page.startswith("<!doctype html>")
    assert "Reading from storage is the limit" in page
    assert str(tmp_path / "plan.toml") in page
    assert main(["report", path, "-o", str(target), "--plan", "other.toml"]) == 0
    assert "other.toml" in target.read_text()


def test_two_profiles(path: str, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert main(["report", path, path, "--output", str(target)]) == 0
    assert "As fast as before" in target.read_text()


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        (3, "a page is of one profile, or of two as before and after, not of 3"),
        (0, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said(path: str, profiles: int, message: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", *([path] * profiles or ["none.json"]), "-o", str(tmp_path / "page.html")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_folder_that_is_not_there(path: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", path, "-o", str(tmp_path / "none" / "page.html")]) == 1
    assert "page.html cannot be written:" in capsys.readouterr().err


def test_analyze_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    found = Measured(is_complete=True, workers=2, batch=16)
    found.gpu = Series([1000.0] * 5, [1.0] * 5)
    found.prep = {workers: Series([100.0 * workers] * 5, [1.0] * 5) for workers in (1, 2)}
    found.prep_busy, found.cores = 0.1, 2
    monkeypatch.setattr(analyze, "measure", lambda words, settings, show: (0, found))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["analyze", "--html", "page.html", "train.py"]) == 0
    said = capsys.readouterr().out
    assert "Written: profile.json, plan.toml, page.html." in said
    when = f"Measured {Profile.load('profile.json').taken} on {platform.node()}; other work took no cores from it."
    assert when in " ".join(said.split())
    assert f"{when} By stoker" in (tmp_path / "page.html").read_text()
    assert "stoker</span> <span>run</span> <span>--plan</span> <span>plan.toml" in (tmp_path / "page.html").read_text()


def test_without_bokeh_nothing_is_begun(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(analyze, "measure", pytest.fail)
    for words in (["report", path, "-o", str(tmp_path / "page.html")], ["analyze", "--html", "page.html", "train.py"]):
        assert main(words) == 1
        assert capsys.readouterr().err == "stoker: a page needs Bokeh: pip install 'stoker[report]'\n"


def test_other_commands_start_without_it() -> None:
    code = (
        "import contextlib, sys\nfrom stoker.cli import main\nwith contextlib.suppress(SystemExit): main(['--help'])\n"
        "print([name for name in ('bokeh', 'jinja2') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "report" in done.stdout
