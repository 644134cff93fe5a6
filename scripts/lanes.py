"""The checks, and all tests but the long ones, at the same time: most tests wait, for workers, scripts and processes.

    python scripts/lanes.py [OPTIONS OF PYTEST]        (with .venv/bin on the PATH)

The checks are in a lane because mypy keeps one core busy for a minute. The other lanes take one folder of tests after the
other, those first that take long. What they print is shown when they have ended. Each has a /dev/shm of its own,
so that none sees the others' caches, groups and loaders. That takes root; without it there is one lane.
"""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-m", "not gpu and not soak"]
CHECK = ["scripts/check"]
NEWEST = [sys.executable, "scripts/newest_torch.py"]
LONGEST = {"run": 3, "end_to_end": 3, "torch": 2, "keeper": 2}
"""Folders that take so long that several lanes share each of them, in so many parts. They run first."""
LONG = ["pool", "cli", "faults", "checkpoint", "remote", "wire", "cache", "live"]
"""Folders that take long, the longest first. They run before all others."""
TOGETHER = 5
"""So many short folders are run by one pytest: it takes seconds to start."""
LANES = 4
APART = ["unshare", "-m", "--propagation", "private", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]


def commands(arguments: list[str]) -> list[list[str]]:
    """What the lanes take, in this order."""
    found = {path.relative_to("tests").parts[0] for path in Path("tests").rglob("test_*.py")}
    short = sorted(found - {*LONGEST, *LONG})
    parts = [files[part::count] for name, count in LONGEST.items() if (files := _files(name)) for part in range(count)]
    parts += [[name] for name in LONG] + [short[start : start + TOGETHER] for start in range(0, len(short), TOGETHER)]
    return [[*NEWEST, *arguments], CHECK, *([*PYTEST, *(f"tests/{name}" for name in part), *arguments] for part in parts)]


def _files(folder: str) -> list[str]:
    """The files of tests in a folder."""
    return sorted(str(path.relative_to("tests")) for path in Path("tests", folder).rglob("test_*.py"))


def can_be_apart() -> bool:
    """Whether a process can have a /dev/shm of its own here."""
    try:
        return subprocess.run([*APART, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def run(command: list[str]) -> "subprocess.CompletedProcess[bytes]":
    """Run a command. What it prints is returned, and how long it took stands below."""
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    done.stdout += f"{time.monotonic() - began:.0f} s: {' '.join(command[-3:])}\n\n".encode()
    return done


def main(arguments: list[str]) -> int:
    """Run everything. Returns how many commands failed."""
    # What a shell starts in the background ignores Ctrl-C, and so do its children: tests of Ctrl-C would fail.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some machines forbid Python to keep what it compiles: then each of many hundred processes would compile Stoker anew.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "tests"], check=True)
    is_apart = can_be_apart()
    failed = 0
    with ThreadPoolExecutor(LANES if is_apart else 1) as lanes:
        under_way = [lanes.submit(run, [*APART, *command] if is_apart else command) for command in commands(arguments)]
        for each in as_completed(under_way):
            done = each.result()
            failed += done.returncode != 0
            sys.stdout.buffer.write(done.stdout)
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
