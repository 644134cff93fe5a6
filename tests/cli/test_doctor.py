"""`stoker doctor`, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path


def stoker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stoker", *arguments], capture_output=True, text=True)


def test_doctor_prints_what_the_host_allows() -> None:
    result = stoker("doctor")
    assert result.returncode == 0
    for topic in ("cores", "memory", "shared memory", "open files", "start methods", "torch", "torch's loading"):
        assert topic in result.stdout


def test_doctor_gives_advice_where_something_is_short() -> None:
    result = subprocess.run(
        ["sh", "-c", f"ulimit -n 100; {sys.executable} -m stoker doctor"], capture_output=True, text=True
    )
    assert "! open files" in result.stdout
    assert "ulimit -n 4096" in result.stdout


def test_doctor_looks_at_the_place_of_a_dataset(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.bin").write_bytes(bytes(10_000))
    out = stoker("doctor", "--data", str(tmp_path)).stdout
    assert "10 KB each" in out
    assert "files/s" in out
    assert stoker("doctor", "--data", str(tmp_path / "none")).returncode == 1


def test_doctor_as_json() -> None:
    findings = json.loads(stoker("doctor", "--json").stdout)
    assert {"topic", "fact", "advice"} == set(findings[0])


def test_usage_errors_exit_with_2() -> None:
    assert stoker("no-such-command").returncode == 2
