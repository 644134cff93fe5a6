"""A container as they come: a small /dev/shm, seccomp, no ptrace, a user without a home, read-only root, little memory."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tries import HANG_S

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make namespaces"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has the numbers of x86_64"),
    pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("setpriv")), reason="needs unshare and setpriv"),
]


def confined(group: Path, options: list[str], *command: str) -> tuple[int, str, str]:
    """Run a command in a container with a memory limit; its code, and what it said."""
    words = ["unshare", "--mount", "--pid", "--fork", "--ipc", sys.executable, str(SCRIPTS / "confined.py"), *options]
    outcome = subprocess.run(
        ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *words, "--", sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    if "unshare failed" in outcome.stderr or "mount:" in outcome.stderr:
        pytest.skip(f"namespaces cannot be made here: {outcome.stderr.strip()}")
    return outcome.returncode, outcome.stdout, outcome.stderr


def test_readmes_first_example(memory_limit: Path) -> None:
    code, out, errors = confined(memory_limit, [], str(SCRIPTS / "readme.py"), "2")
    assert code == 0, errors
    assert "LoaderStats(batches=30, samples=6000" in out


def test_without_a_usable_dev_shm(memory_limit: Path) -> None:
    code, out, errors = confined(memory_limit, ["--shm", "ro,size=4k,mode=0555"], str(SCRIPTS / "readme.py"), "2")
    assert code == 0, errors
    assert "LoaderStats(batches=30, samples=6000" in out


NO_MEMFD = ["--no", "memfd_create,pidfd_open"]


@pytest.mark.parametrize("script", ["readme.py", "everything.py"])
def test_without_memfd_batches_lie_in_dev_shm(memory_limit: Path, script: str) -> None:
    code, out, errors = confined(memory_limit, NO_MEMFD, str(SCRIPTS / script), "2")
    assert code == 0, errors
    assert script != "readme.py" or "LoaderStats(batches=30, samples=6000" in out


@pytest.mark.parametrize(
    ("shm", "said"),
    [
        ("size=3m,mode=1777", "/dev/shm has no room for"),
        ("ro,size=4k,mode=0555", "neither by memfd_create nor in /dev/shm (Read-only file system)"),
    ],
    ids=["small", "read-only"],
)
def test_without_memfd_and_without_room_it_is_said_what_to_do(memory_limit: Path, shm: str, said: str) -> None:
    code, _, errors = confined(memory_limit, [*NO_MEMFD, "--shm", shm], str(SCRIPTS / "readme.py"), "2")
    assert code == 1  # and by no signal
    error = [line for line in errors.splitlines() if "ResourceError" in line][-1]
    assert said in error
    assert "allow memfd_create in the seccomp profile of the container" in error


def test_without_pidfd(memory_limit: Path) -> None:
    code, _, errors = confined(memory_limit, ["--no", "pidfd_open"], str(SCRIPTS / "readme.py"), "2")
    assert code == 0, errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], ["0.062 GiB free", "GiB available to this process", "workers end at once"]),
        (NO_MEMFD, ["memfd_create is refused", "pidfd_open is refused"]),
        (["--shm", "ro,size=4k,mode=0555"], ["cannot be written"]),
    ],
    ids=["usual", "no memfd or pidfd", "no /dev/shm"],
)
def test_doctor_says_what_is_limited(memory_limit: Path, options: list[str], said: list[str]) -> None:
    code, out, errors = confined(memory_limit, options, "-m", "stoker", "doctor")
    assert code == 0, errors
    assert all(words in out for words in said), out
    (memory,) = (line for line in out.splitlines() if "available to this process" in line)
    assert float(memory.split()[-6]) < 0.75


def test_commands_of_a_user_without_a_home(memory_limit: Path) -> None:
    for command in (["cache", "ls"], ["cache", "clear"], ["top", "--once"], ["metrics"], ["--help"]):
        code, _, errors = confined(memory_limit, [], "-m", "stoker", *command)
        assert (code, errors) == (0, ""), command
