"""Hyper-parameter searches as the guide shows them: every trial sees everything, and everything is prepared once."""

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from stoker.group.door import home

ROOT = Path(__file__).parents[2]
TRIALS, EPOCHS, SAMPLES = 4, 2, 240
ENDS_WITHIN_S = 60


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables for a process, by which all that it starts are known; none may be left, and nothing in the home folder."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # there are sockets in it
        folder = os.path.dirname(sys.executable)
        more = {"HOME": str(tmp_path), "RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        yield {**os.environ, **more, "PATH": f"{folder}:{os.environ['PATH']}", "MARK": mark}
        deadline = time.monotonic() + ENDS_WITHIN_S
        while (left := list(_marked(mark))) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.2)
        assert not left, f"left running: {left}"


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def run(example: str, place: Path, variables: dict[str, str]) -> str:
    group = f"test-{secrets.token_hex(4)}"
    words = [sys.executable, str(ROOT / "examples" / "search" / example), "--directory", str(place), "--group", group]
    words += ["--trials", str(TRIALS), "--epochs", str(EPOCHS), "--samples", str(SAMPLES)]
    done = subprocess.run(words, capture_output=True, text=True, env=variables, cwd=place.parent, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (home() / group).exists()
    return done.stdout


def assert_shared(accounts: list[dict[str, Any]], place: Path) -> None:
    """Of what trials say they saw, and the dataset that it prepared."""
    assert len(accounts) == TRIALS
    for what, samples in (("train", SAMPLES), ("check", SAMPLES // 4)):
        assert [account[what] for account in accounts] == [[0, 1]] * TRIALS
        assert Counter(map(int, (place / what).read_text().split())) == Counter(dict.fromkeys(range(samples), EPOCHS))
        assert {account["groups"][what]["repeated"] for account in accounts} == {0}


def test_optuna(tmp_path: Path, surroundings: dict[str, str]) -> None:
    place = tmp_path / "search"
    output = run("optuna_search.py", place, surroundings)
    study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(place / "journal"))))
    assert f"best: {study.best_value:.3f}" in output
    assert_shared([trial.user_attrs["account"] for trial in study.trials], place)


def test_ray(tmp_path: Path, surroundings: dict[str, str]) -> None:
    place = tmp_path / "search"
    output = run("ray_search.py", place, surroundings)
    reports = [path.read_text().splitlines() for path in place.glob("pictures/*/result.json")]
    assert {len(lines) for lines in reports} == {EPOCHS}
    last = [json.loads(lines[-1]) for lines in reports]
    assert f"best: {max(found['accuracy'] for found in last):.3f}" in output
    assert_shared([found["account"] for found in last], place)


def test_the_first_steps_of_the_guide(tmp_path: Path, surroundings: dict[str, str]) -> None:
    guide = (ROOT / "docs" / "groups.md").read_text()
    script, commands = (re.search(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("python", "sh"))
    assert script is not None and commands is not None
    count, batches, group = 128, 4, f"test-{secrets.token_hex(4)}"
    (tmp_path / "train.py").write_text(script[1].replace("1024", str(count)))
    text = commands[1].replace("search-7", group)
    done = subprocess.run(
        ["sh", "-ec", text], capture_output=True, text=True, env=surroundings, cwd=tmp_path, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 2, loss") == 4
    assert done.stderr.count("stoker: 12 batches") == 4, done.stderr
    found = re.findall(r"GroupStats\(.*? prepared=(\d+), repeated=(\d+),", done.stdout)
    assert len(found) == 4
    prepared = max(int(prepared) for prepared, _ in found)
    assert prepared % batches == 0
    assert 3 * batches <= prepared < 4 * 3 * batches
    assert {repeated for _, repeated in found} == {"0"}
    assert not (home() / group).exists()
