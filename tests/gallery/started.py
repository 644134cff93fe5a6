"""Scripts of the gallery as processes: started, read line by line, and killed at a moment."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.gallery.table import Entry, Moment

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = Path(sys.executable).parent / "torchrun"
STOKER = [sys.executable, "-m", "stoker"]
HANG_S = 180.0


@dataclass
class Ended:
    """A process that has ended: its code, all that it printed, and whether it was killed at the moment that was given."""

    code: int
    lines: list[str] = field(default_factory=list)
    was_killed: bool = False
    took_too_long: bool = False
    seconds: float = 0.0

    def says(self, pattern: str) -> str:
        """The first line that matches, or nothing."""
        return next((line for line in self.lines if re.search(pattern, line)), "")

    @property
    def last(self) -> str:
        """The last line that says something, for a message."""
        return next((line.strip() for line in reversed(self.lines) if line.strip()), "(no output)")[:160]


def words(entry: Entry, data: Path, out: Path, *more: str) -> list[str]:
    """The script and its arguments, as `python` or `stoker run` takes them."""
    arguments = ["--data", str(data), "--out", str(out), *more]
    if entry.is_module:
        return ["-m", f"{entry.name}.train", *arguments]
    return [str(SCRIPTS / f"{entry.name}.py"), *arguments]


def plainly(entry: Entry, script: list[str]) -> list[str]:
    """The command without us."""
    return [*_launcher(entry), *script] if entry.ranks > 1 else [sys.executable, *script]


def under(entry: Entry, command: list[str], script: list[str]) -> list[str]:
    """The command with us: `stoker run --cache 64MB`, say."""
    return [*STOKER, *command, "--", *(_launcher(entry) if entry.ranks > 1 else []), *script]


def _launcher(entry: Entry) -> list[str]:
    return [str(TORCHRUN), "--standalone", "--nproc-per-node", str(entry.ranks)]


def run(
    command: list[str],
    folder: Path,
    *,
    kill_at: Moment | None = None,
    limit_s: float = HANG_S,
    join: Callable[[], None] | None = None,
    kill_all: bool = False,
) -> Ended:
    """Run it to its end, or until the moment at which it is killed (-9): the process alone, or all that it started.

    `join` is what the process does before it begins.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(SCRIPTS)
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=join,
    )
    ended = Ended(0)

    def stop() -> None:
        ended.took_too_long = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    seen = 0
    assert process.stdout is not None
    try:
        for line in process.stdout:
            ended.lines.append(line.rstrip("\n"))
            if kill_at is not None and not ended.was_killed and re.search(kill_at[0], line):
                seen += 1
                if seen == kill_at[1]:
                    ended.was_killed = True
                    _kill(process.pid, kill_all)
        ended.code = process.wait()
    finally:
        timer.cancel()
        process.stdout.close()
    ended.seconds = time.monotonic() - began
    return ended


def _kill(pid: int, all_of_them: bool) -> None:
    """With -9: one process, or also all that it has started; torchrun's ranks have sessions of their own."""
    started = psutil.Process(pid).children(recursive=True) if all_of_them else []
    os.kill(pid, signal.SIGKILL)
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
