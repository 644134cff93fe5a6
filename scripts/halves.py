"""All tests but the long ones, in two halves at the same time: most of them wait, for workers, scripts and processes.

    python scripts/halves.py [OPTIONS OF PYTEST]        (with .venv/bin on the PATH)

The second half has a /dev/shm of its own, so that neither sees the other's caches, groups and loaders. That takes root;
without it, one half follows the other.
"""

import os
import subprocess
import sys
import tempfile

SECOND = ["tests/run", "tests/end_to_end"]
PYTEST = [sys.executable, "-m", "pytest", "-m", "not gpu and not soak"]
APART = ["unshare", "-m", "--propagation", "private", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]


def can_be_apart() -> bool:
    """Whether a process can have a /dev/shm of its own here."""
    try:
        return subprocess.run([*APART, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def main(arguments: list[str]) -> int:
    """Run both halves. What the second prints follows when the first has ended."""
    if not can_be_apart():
        return subprocess.run([*PYTEST, *arguments]).returncode
    with tempfile.TemporaryFile() as said:
        other = subprocess.Popen([*APART, *PYTEST, *SECOND, *arguments], stdout=said, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*PYTEST, *(f"--ignore={folder}" for folder in SECOND), *arguments]).returncode
            other.wait()
        finally:
            other.terminate()
            other.wait()
        said.seek(0)
        sys.stdout.flush()
        while chunk := said.read(1 << 16):
            os.write(1, chunk)
    return first or other.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
