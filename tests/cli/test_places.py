"""Analyses that are done again: nothing of the user's is lost, and nothing that is not is piled up."""

import json
from pathlib import Path

import pytest

from stoker.cli import main, places

Captured = pytest.CaptureFixture[str]


def analyse(folder: Path, word: str, name: str = "profile.json") -> list[str]:
    """Write what an analysis writes; the names of what it has kept."""
    profile = folder / name
    plan = places.plan_beside(profile)
    places.check_profile(profile)
    places.check_plan(plan)
    kept = places.set_aside(profile, plan)
    profile.write_text(json.dumps({"stoker": word}))
    plan.write_text(f"# {word}\nversion = 1\n")
    places.mark(plan, profile)
    return [path.name for path in kept]


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text().split()[1].strip('"}') for path in folder.iterdir()}


def test_again_and_again(tmp_path: Path) -> None:
    assert analyse(tmp_path, "first") == []
    assert analyse(tmp_path, "second") == ["profile.json.bak"]
    assert analyse(tmp_path, "third") == ["profile.json.bak"]
    assert files(tmp_path) == {"profile.json": "third", "plan.toml": "third", "profile.json.bak": "second"}


def test_a_plan_that_was_changed_is_kept_for_good(tmp_path: Path) -> None:
    for word in ("mine", "mine-too"):
        analyse(tmp_path, "before")
        (tmp_path / "plan.toml").write_text(f"# {word}\nversion = 1\n")
        analyse(tmp_path, "after")
    assert analyse(tmp_path, "last") == ["profile.json.bak"]
    kept = files(tmp_path)
    assert (kept["plan.toml"], kept["plan.toml.bak"], kept["plan.toml.bak2"]) == ("last", "mine", "mine-too")


def test_the_plan_is_named_after_the_profile(tmp_path: Path) -> None:
    analyse(tmp_path, "one", "before.json")
    analyse(tmp_path, "other", "after.json")
    assert sorted(files(tmp_path)) == ["after.json", "after.plan.toml", "before.json", "before.plan.toml"]


@pytest.mark.parametrize("option", ["--json", "--plan", "--html"])
def test_another_file_is_never_replaced(option: str, tmp_path: Path, capsys: Captured) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('it ran')\n")
    assert main(["analyze", option, str(script), str(script)]) == 1
    assert f"{script} is there already, and is not a" in capsys.readouterr().err
    assert script.read_text() == "raise SystemExit('it ran')\n"


@pytest.mark.parametrize("option", ["--json", "--plan", "--html"])
def test_nor_is_a_device(option: str, capsys: Captured) -> None:
    assert main(["analyze", option, "/dev/null", "train.py"]) == 1
    assert "/dev/null is not a file that could be replaced" in capsys.readouterr().err


def test_nor_by_a_report(tmp_path: Path, capsys: Captured) -> None:
    profile = str(Path(__file__).parents[2] / "docs" / "examples" / "resnet18-h200.json")
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert main(["report", profile, "-o", str(notes)]) == 1
    assert "is not a page" in capsys.readouterr().err
    assert main(["report", profile, "-o", str(tmp_path / "page.html")]) == 0
    assert main(["report", profile, "-o", str(tmp_path / "page.html")]) == 0
    assert notes.read_text() == "mine"


def test_jobs_are_not_started_for_a_result_that_cannot_be_written(tmp_path: Path, capsys: Captured) -> None:
    assert main(["together", "--json", str(tmp_path / "nope" / "x"), "missing.toml"]) == 1
    assert "--json: " in capsys.readouterr().err
