"""`stoker schedule profile` on a real script, under real limits of cores."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.schedule.test_sensitivity import MINIMAL
from tests.tries import in_some_try, until

from stoker.cli import main
from stoker.live import folder
from stoker.schedule import quota
from stoker.schedule.job import Server
from stoker.schedule.profiles import read_profiles
from stoker.schedule.state import State

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Burning(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return torch.full((10,), float(index))

weight = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(weight.parameters(), lr=1e-9)
for batch in DataLoader(Burning(), batch_size=4, num_workers=2):
    optimizer.zero_grad()
    weight(batch).mean().backward()
    optimizer.step()
"""


def test_a_script_is_analysed_and_watched_with_fewer_cores(tmp_path: Path) -> None:
    in_some_try(lambda: analysed_and_watched(tmp_path))  # others on this machine may leave it less than its quota


def analysed_and_watched(tmp_path: Path) -> None:
    script, target = tmp_path / "burn.py", tmp_path / "burn.json"
    script.write_text(SCRIPT)
    options = ["--time", "2", "--cpus", "2", "--core", "0.2", "-o", str(target)]
    command = [sys.executable, "-m", "stoker", "schedule", "profile", *options, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 CPU: " in done.stdout
    assert "It wants 2 CPUs" in done.stdout
    model = json.loads(target.read_text())["profiles"]["models"]["burn"]
    assert set(model["measured"]) == {"1", "2"}
    matrix = read_profiles(target, [Server("a", 1, 3.0, 1.0)])["burn"].matrix
    assert matrix.rate(2, model["mem"]) > 1.3 * matrix.rate(1, model["mem"])
    assert matrix.reads is not None
    assert matrix.reads.process_gb > 0.05


def test_a_job_may_be_measured_as_it_is_submitted_and_has_waited_meanwhile(tmp_path: Path) -> None:
    script, analysis = tmp_path / "burn.py", tmp_path / "profile.json"
    script.write_text(SCRIPT)
    analysis.write_text(json.dumps(MINIMAL))
    options = ["--measure", "--analysis", str(analysis), "--cpus", "1", "--time", "1"]
    command = [sys.executable, "-m", "stoker", "schedule", "submit", "--state", str(tmp_path / "state"), *options]
    began = time.time()
    done = subprocess.run([*command, "--", str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "stoker: 1 CPU: " in done.stderr
    state = State(tmp_path / "state")
    known = state.job("1")
    assert known.is_profiled
    assert began <= known.job.arrival_s < time.time() - 1  # it came before the second in which it was watched
    state.close()
    both = [*command, "--profile", "burn.json", "--", str(script)]
    refused = subprocess.run(both, capture_output=True, text=True, cwd=tmp_path)
    assert "give one of them" in refused.stderr


def test_what_is_stopped_while_it_measures_leaves_no_script_behind(tmp_path: Path) -> None:
    script, analysis = tmp_path / "burn.py", tmp_path / "profile.json"
    script.write_text(SCRIPT)
    analysis.write_text(json.dumps(MINIMAL))
    options = ["-o", "job.json", "--analysis", str(analysis), "--cpus", "1", "--time", "600"]
    command = [sys.executable, "-m", "stoker", "schedule", "profile", *options, str(script)]

    def trains() -> bool:
        return any(seen.facts.script == str(script) and seen.batches for seen in folder.loaders().values())

    with subprocess.Popen(command, cwd=tmp_path) as process:
        until(trains)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGINT, "as by Ctrl-C"
    assert not trains()


def test_where_cores_cannot_be_limited_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quota, "groups", lambda _: [])
    Path("train.py").write_text("open('was-run', 'w')")
    assert main(["schedule", "profile", "-o", "job.json", "--", "train.py"]) == 1
    assert "the number of cores could not be limited here: it needs root" in capsys.readouterr().err
    assert not Path("was-run").exists()
