"""A clock that is put forward and back all the time: durations and lives are not measured by it."""

import collections
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoint.killing import finish, newest, start, steps_seen
from tests.soak.storms import Counts, judge, subject
from tests.soak.subject import make_files
from tests.tries import HANG_S, until

JUMPS = """
import random, time
_rng, _time, _time_ns = random.Random(0), time.time, time.time_ns
time.time = lambda: _time() + _rng.choice([-86400, 0, 86400])
time.time_ns = lambda: _time_ns() + _rng.choice([-1, 0, 1]) * 86400 * 10**9
"""


@pytest.fixture
def _jumping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started from now on have such a clock."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clock"))


@pytest.mark.usefixtures("_jumping")
def test_loaders_groups_and_caches(tmp_path: Path) -> None:
    group = f"test-clock-{os.getpid()}"
    make_files(tmp_path / "data")
    jobs: dict[str, subprocess.Popen[bytes]] = {}
    for name, words in {"cached": ["cache"], "one": ["seed", group], "other": ["seed", group]}.items():
        (tmp_path / name).mkdir()
        jobs[name] = subject(tmp_path / name, *words)
    until(lambda: all((tmp_path / name / "seen").exists() and (tmp_path / name / "seen").stat().st_size for name in jobs))
    for job in jobs.values():
        job.send_signal(signal.SIGSTOP)  # so that there is time to look at them
    words = [sys.executable, "-m", "stoker", "top", "--json"]
    looked = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)
    for job in jobs.values():
        job.send_signal(signal.SIGCONT)
    assert all(str(job.pid) in looked.stdout for job in jobs.values()), looked
    counts: Counts = collections.Counter()
    for name, job in jobs.items():
        said = job.communicate(timeout=HANG_S)[1]
        assert job.returncode == 0, said
        judge(tmp_path / name, counts)
    assert not any(counts.values())


@pytest.mark.usefixtures("_jumping")
def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumping, steady = tmp_path / "jumping", tmp_path / "steady"
    jumping.mkdir(), steady.mkdir()
    processes = [start(jumping, 40, "--every", "3")]
    monkeypatch.delenv("PYTHONPATH")
    processes.append(start(steady, 40, "--every", "3"))
    for process in processes:
        finish(process)
    assert steps_seen(jumping) == steps_seen(steady)
    assert newest(jumping) == newest(steady)
