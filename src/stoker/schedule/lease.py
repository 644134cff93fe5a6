"""The process that a lease runs: `python -m stoker.schedule.lease JOB-FOLDER NUMBER CORES`. See `marks` for its files.

It takes the job's lock, which its script inherits: the lock is free when both have ended. It has signals told on to the
script, tells how far the script is, and writes down with which code it ended.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.host.locks import open_lock
from stoker.schedule.marks import SAVED, Marks, steps_saved
from stoker.schedule.quota import leave, limited
from stoker.schedule.steps import CountedLoop

_TOLD_ON = signal.SIGUSR1, signal.SIGTERM
_LOOK_MS = 1_000
_CANNOT_START = 127
_WARM = 5
"""Batches that do not count for the rate: they wait for workers to start, and for what is prepared again."""


class _Script:
    """The job's script, and the signals that were told on to it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.heard: int | None = None

    def hear(self, number: int, _: Any) -> None:
        """Tell a signal on, the first time."""
        if self.heard is None:
            self.heard = number
            if self.process is not None:
                self.process.send_signal(number)

    def start(self, words: Sequence[str], folder: str, environment: dict[str, str], lock: int) -> None:
        """Start it. A signal that came before is told on at once."""
        self.process = subprocess.Popen(words, cwd=folder, env=environment, pass_fds=[lock])
        if self.heard is not None:
            self.process.send_signal(self.heard)

    @property
    def code(self) -> int:
        """As it ended. One that dies of the signal that it was told is one that goes on from where it was saved."""
        assert self.process is not None
        code = self.process.wait()
        return SAVED if self.heard is not None and code == -self.heard else code


def main(arguments: Sequence[str]) -> int:
    """Run the lease."""
    marks, cores = Marks(Path(arguments[0]), int(arguments[1])), float(arguments[2])
    script = _Script()
    for number in _TOLD_ON:
        signal.signal(number, script.hear)
    lock = open_lock(marks.job / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits for what is left of the lease before
    if any(marks.has(name) for name in ("ready", "exit")):
        print("stoker: this lease has been started before, and is not started again", file=sys.stderr)
        return SAVED
    if marks.has("void") or script.heard is not None:
        return _ended(marks, SAVED, "it was taken back before it began")
    job = json.loads((marks.job / "job.json").read_text("utf-8"))
    with limited(f"{marks.job.name}-{marks.number}-{os.getpid()}", cores) as group:
        environment = _environment(job["environment"])
        try:
            script.start(_command(job, marks), job["folder"], environment, lock)
        except OSError as error:
            return _ended(marks, _CANNOT_START, f"it cannot be started: {error}")
        assert script.process is not None
        if group is not None:
            leave(group)
        pid = script.process.pid
        began = time.time()
        ready = {"pid": pid, "group": str(group) if group else "", "at": began, "saved": steps_saved(marks.job)}
        marks.write("ready", ready)
        _watch(marks, pid)
        code = script.code
        return _ended(marks, code, "it was told to" if code == SAVED and script.heard is not None else "")


def _environment(submitted: Mapping[str, str]) -> dict[str, str]:
    """That of `submit`, with what Slurm says of this lease: what it said of the shell of `submit` is of another job."""
    own = {name: value for name, value in os.environ.items() if name.startswith(("SLURM", "CUDA_", "ROCR_", "GPU_"))}
    return {name: value for name, value in submitted.items() if not name.startswith("SLURM")} | own


def _command(job: dict[str, Any], marks: Marks) -> list[str]:
    saving = ["--checkpoint", str(marks.job / "saved")] if job["restartable"] else []
    return [
        sys.executable,
        "-m",
        "stoker",
        "run",
        "--seed",
        str(job["seed"]),
        *saving,
        *job["options"],
        "--",
        *job["words"],
    ]


def _watch(marks: Marks, pid: int) -> None:
    """Until the script has ended, write down how many batches it has got, and when."""
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    before = first = began = None
    loop = CountedLoop(pid)
    is_over = False
    while not is_over:
        is_over = bool(poll.poll(_LOOK_MS))  # and then the last words of its loaders are heard
        with contextlib.suppress(OSError, ValueError):
            steps = loop.look()
            if steps is not None:
                began = steps.began_at if began is None else began
                if first is not None and steps.batches < first[0]:
                    first = None  # what it did at first was not training
                if first is None and steps.batches > _WARM:
                    first = steps.batches, steps.left_at
                told = {"batches": steps.batches, "at": steps.left_at, "began": began, "first": first}
                if told != before:
                    marks.write("progress", told | {"clock": time.monotonic(), "time": time.time()}, lasting=False)
                    before = told
    loop.close()
    os.close(descriptor)


def _ended(marks: Marks, code: int, word: str) -> int:
    marks.write("exit", {"code": code, "at": time.time(), "word": word})
    return code if 0 <= code < 256 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
