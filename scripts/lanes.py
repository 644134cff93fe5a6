"""The checks, and all tests but the long ones, at the same time: most tests wait, for workers, scripts and processes.

    python scripts/lanes.py [OPTIONS OF PYTEST]        (with .venv/bin on the PATH)

The checks are in a lane because mypy keeps one core busy for a minute. The other lanes take one folder of tests after the
other, those first that take long. What they print is shown when they have ended. Each has a /dev/shm of its own,
so that none sees the others' caches, groups and loaders. That takes root; without it there is one lane.

A test that failed beside three other lanes is tried once more by itself, when all lanes have ended, if not more than a few
failed. What it said at first stays in the output, and the last lines name it: such a test has to be mended, too, but it
does not stand for all others. A hang is not tried again.
"""

import json
import signal
import subprocess
import sys
import tempfile
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
FEW = 3
"""If more tests than these fail, none is tried again."""
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
    with tempfile.TemporaryDirectory() as notes, ThreadPoolExecutor(LANES if is_apart else 1) as lanes:
        under_way = {}
        for number, command in enumerate(commands(arguments)):
            noting = [] if command is CHECK else ["-o", f"cache_dir={notes}/{number}"]
            whole = [*APART, *command, *noting] if is_apart else [*command, *noting]
            under_way[lanes.submit(run, whole)] = whole, Path(notes, str(number))
        failed = []
        for each in as_completed(under_way):
            show(each.result())
            failed += [under_way[each]] if each.result().returncode else []
        return len(still_failing(failed))


def still_failing(failed: list[tuple[list[str], Path]]) -> list[list[str]]:
    """Which of these commands fail when the few tests that failed are run by themselves."""
    names = {note: failures(note) for _, note in failed}
    if not all(names.values()) or sum(map(len, names.values())) > FEW:
        return [command for command, _ in failed]
    again = []
    for command, note in failed:
        show(done := run([*command, "--last-failed", "--last-failed-no-failures", "none"]))
        again += [command] if done.returncode else []
        print(f"Failed at first, {'and again' if done.returncode else 'passed'} by itself: {', '.join(names[note])}")
    return again


def failures(note: Path) -> list[str]:
    """The tests that pytest noted as failed, if it came to its end."""
    try:
        return list(json.loads((note / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def show(done: "subprocess.CompletedProcess[bytes]") -> None:
    """Print what a command has printed."""
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
