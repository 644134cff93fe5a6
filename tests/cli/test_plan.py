"""`stoker plan`, as a user runs it."""

import copy
import json
from pathlib import Path

import pytest
from tests.test_profile import SMALLEST

from stoker.cli import main
from stoker.plan import Plan

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    document = copy.deepcopy(SMALLEST)
    document["host"] |= {"cores": 8, "room_bytes": 60_000_000}
    (tmp_path / "profile.json").write_text(json.dumps(document))
    return str(tmp_path / "profile.json")


def test_a_table_with_reasons(path: str, capsys: Captured) -> None:
    assert main(["plan", path, "--hosts", "8", "--gpus", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0] == f"8 hosts with 4 ranks each, from {path}"
    names = ("workers", "reading", "preparing", "queue, in batches", "cache", "policy", "samples/s")
    rows = {name: next(line for line in lines if line.strip().startswith(name)) for name in names}
    assert "60.0 MB" in rows["cache"]
    assert "480 MB on 8 hosts" in rows["cache"]
    assert "keep-first" in rows["policy"]
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)
    assert main(["plan", path, "--hosts", "8", "--gpus", "4"]) == 0
    assert capsys.readouterr().out == captured.out


def test_a_plan_is_written_and_what_was_there_is_kept(path: str, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "plan.toml"
    assert main(["plan", path, "--hosts", "8", "--gpus", "4", "-o", str(target)]) == 0
    assert capsys.readouterr().out.endswith(f"Written: {target}.\n")
    plan = Plan.load(target)
    assert (plan.cache_bytes, plan.cache_policy) == (60_000_000, "keep-first")
    assert set(plan.values()) == {"workers", "num_workers", "prefetch_factor", "cache_bytes", "cache_policy"}
    text = target.read_text()
    assert text.startswith("# made of profile.json by stoker plan --hosts 8 --gpus 4\n")
    assert all("  # " in line for line in text.splitlines() if " = " in line and not line.startswith(("#", "version")))
    assert main(["plan", path, "--hosts", "8", "--gpus", "4", "--out", str(target)]) == 0
    assert "before" not in capsys.readouterr().out
    assert main(["plan", path, "--out", str(target)]) == 0
    assert f"What was there before: {target}.bak." in capsys.readouterr().out
    assert (tmp_path / "plan.toml.bak").read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "0"], "at least one host and one GPU"),
        (["--hosts", "-1"], "at least one host and one GPU"),
        (["-o", "{folder}/profile.json"], "is not a plan: choose another name"),
        (["-o", "{folder}/none/plan.toml"], "cannot be written"),
    ],
)
def test_wrong_use_is_one_line(path: str, capsys: Captured, options: list[str], message: str) -> None:
    words = [word.format(folder=Path(path).parent) for word in options]
    assert main(["plan", path, *words]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_no_profile(tmp_path: Path, capsys: Captured) -> None:
    assert main(["plan", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err
