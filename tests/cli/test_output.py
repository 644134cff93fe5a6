"""Output that nobody reads, or that there is no room for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
