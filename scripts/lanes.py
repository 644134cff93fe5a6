"""All tests but the long ones, in four lanes at the same time: most tests wait, for workers, scripts and processes.

    python scripts/lanes.py [OPTIONS OF PYTEST]        (with .venv/bin on the PATH)

Each lane has a /dev/shm of its own, so that none sees the others' caches, groups and loaders. That takes root; without it,
one lane follows the other. What a lane prints is shown when it has ended; the longest lane prints as it goes.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-m", "not gpu and not soak"]
SCRIPTS, WHOLE = "tests/run", "tests/end_to_end"
HALF = "tests/internals"
"""What comes before it in the alphabet takes as long as the rest."""
APART = ["unshare", "-m", "--propagation", "private", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]

Lane = list[list[str]]


def lanes(arguments: list[str]) -> list[Lane]:
    """The commands of each lane, the longest lane first. A folder that is in none of those named is in the first two."""
    found = {path.relative_to("tests").parts[0] for path in Path("tests").rglob("test_*.py")}
    rest = sorted({f"tests/{name}" for name in found} - {SCRIPTS, WHOLE})
    return [
        [[*PYTEST, *(name for name in rest if name < HALF), *arguments]],
        [[*PYTEST, *(name for name in rest if name >= HALF), *arguments]],
        [[*PYTEST, SCRIPTS, *arguments]],
        [[*PYTEST, WHOLE, *arguments], [sys.executable, "scripts/newest_torch.py", *arguments]],
    ]


def can_be_apart() -> bool:
    """Whether a process can have a /dev/shm of its own here."""
    try:
        return subprocess.run([*APART, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def run(lane: Lane, before: list[str]) -> int:
    """Run the commands of a lane, all of them. Returns how many failed."""
    codes = [subprocess.run([*before, *command]).returncode for command in lane]
    return sum(code != 0 for code in codes)


def run_quietly(lane: Lane, before: list[str]) -> tuple[int, bytes]:
    """The same; what was printed is returned, too."""
    done = [subprocess.run([*before, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in lane]
    return sum(each.returncode != 0 for each in done), b"".join(each.stdout for each in done)


def main(arguments: list[str]) -> int:
    """Run all lanes. Returns how many commands failed."""
    longest, *others = lanes(arguments)
    if not can_be_apart():
        return sum([run(lane, []) for lane in (longest, *others)])
    with ThreadPoolExecutor() as threads:
        under_way = [threads.submit(run_quietly, lane, APART) for lane in others]
        failed = run(longest, APART)
        for lane in under_way:
            more, said = lane.result()
            failed += more
            sys.stdout.buffer.write(said)
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
