"""Output that nobody reads, that there is no room for, or that the terminal cannot show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker import signs
from stoker.profile import Profile
from stoker.report.text import text_report
from stoker.report.top import spark

STOKER = [sys.executable, "-m", "stoker"]
PROFILE = Path(__file__).parents[2] / "docs" / "examples" / "resnet18-h200.json"


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", [["whatif", str(PROFILE)], ["whatif", "--json", str(PROFILE)], ["doctor"], ["metrics"]])
def test_a_closed_pipe_is_no_error_to_tell(words: list[str], buffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
        done = subprocess.run([*STOKER, *words], stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*STOKER, "whatif", str(PROFILE)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "stoker: [Errno 28] No space left on device\n")


def test_a_plan_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe")
    words = ["run", "--plan", str(tmp_path / "plan.toml"), "train.py"]
    done = subprocess.run([*STOKER, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is not TOML" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_with_little_more_than_letters_is_shown_what_it_has() -> None:
    text = text_report(Profile.load(PROFILE))
    plain = text.encode("ascii", signs.ERRORS).decode()
    assert [len(line) for line in plain.splitlines()[2:5]] == [len(line) for line in text.splitlines()[2:5]]
    assert "###" in plain
    assert "+-" in plain
    assert "\\" not in plain
    assert text.encode("utf-8", signs.ERRORS).decode() == text
    assert spark(range(8), 8).encode("ascii", signs.ERRORS) == b"_.-=+*%#"


def test_any_name_can_be_printed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    named = tmp_path / "tr\xe4ning \u2588"
    named.mkdir()
    done = subprocess.run([*STOKER, "doctor", "--data", str(named)], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"tr\\xe4ning #" in done.stdout
    done = subprocess.run([*STOKER, "whatif", str(named / "p.json")], capture_output=True, env=environment)
    assert done.returncode == 1
    assert b"tr\\xe4ning #/p.json" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["analyze", "--iter", "3", "x.py"], 2),
        (["analyze", "--time", "nan", "x.py"], 1),
        (["analyze", "--fail-above", "nan", "x.py"], 1),
        (["analyze", "--fail-above", "100", "x.py"], 1),
        (["run", "--cache", "1MB", "--peers", "node1", "x.py"], 1),
        (["run", "--cache", "1MB", "--peers", "192.0.2.1:7,192.0.2.2:7", "x.py"], 1),
        (["run", "--cache", "1MB", "--peers", "127.0.0.1:7,127.0.0.1:8", "x.py"], 1),
    ],
    ids=["short", "nan", "no limit", "a limit that holds always", "peers", "not among the peers", "no secret"],
)
def test_options_that_mean_nothing_are_refused_before_anything_runs(words: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("open('ran', 'w')")
    environment = {**os.environ, "STOKER_SECRET_FILE": str(tmp_path / "none")}
    done = subprocess.run([*STOKER, *words], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_program_may_start_the_script_on_hosts_that_are_among_the_peers(tmp_path: Path) -> None:
    words = ["run", "--cache", "1MB", "--peers", "192.0.2.1:7,192.0.2.2:7", "echo", "there"]
    done = subprocess.run([*STOKER, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
