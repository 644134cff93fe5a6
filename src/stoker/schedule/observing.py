"""A script for a while, as a lease would run it: how fast it is with some cores, and how much memory its processes have.

A real job pays for the start of each epoch, where workers are made. So what is watched is whole epochs, if they are short
enough to be waited for; of longer ones, a part without a start, which is then a small part of them.

What it says goes to a file: nobody reads meanwhile, and a script that logs each iteration would wait for a full pipe.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stoker.errors import CommandError
from stoker.schedule.quota import leave, limited
from stoker.schedule.steps import CountedLoop, Steps

_LOOK_S = 0.1
_SELDOM = 10
"""Looks between two at the memory, which cost the kernel some milliseconds for each process."""
_WARM = 5
"""Batches that do not count: workers start, and the first are there already."""
_LEAST = 10
_LONGEST = 5
"""For whole epochs a loop is watched so many times as long as was asked for, at most."""
_BEYOND = 0.03
"""A part of what was watched may be beyond them: a loop is not looked at after each batch."""
_START_S = 600.0
_TAIL = 4096


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a script."""

    rate: float
    """Iterations per second."""
    memory_bytes: int
    """Of all its processes together, shared memory counted once."""
    read_bytes: float
    """What an iteration read from a disk, and did not find in memory."""
    is_limited: bool
    """Whether it really had so many cores at most."""


def observe(words: Sequence[str], cores: float, seconds: float) -> Observed:
    """Start a script under `stoker run`, watch its loop for some seconds, and end it."""
    with (
        limited(f"profile-{os.getpid()}", cores) as group,
        tempfile.TemporaryDirectory(prefix="stoker-", ignore_cleanup_errors=True) as saved,
        tempfile.TemporaryFile() as said,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "stoker", "run", "--seed", "1", "--checkpoint", saved, "--", *words],
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        if group is not None:
            leave(group)
        try:
            watched = _watch(process, said, seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    first, last = watched.first, watched.last
    batches = last.batches - first.batches
    read = (watched.read_last - watched.read_first) / batches
    return Observed(batches / (last.left_at - first.left_at), watched.memory, read, group is not None)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A loop at two times, and what all its processes had read from disks by then."""

    first: Steps
    last: Steps
    read_first: int
    read_last: int
    memory: int


def _watch(process: "subprocess.Popen[bytes]", said: IO[bytes], seconds: float) -> _Watched:
    deadline = time.monotonic() + _START_S
    first = last = None
    memory = read_first = looks = 0
    read: dict[int, int] = {}
    loop = CountedLoop(process.pid)
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        steps = loop.look()
        if steps is None or steps.batches <= _WARM:
            continue
        last = steps
        looks += 1
        read |= _read(process.pid)
        if first is None or last.batches < first.batches:  # what it did at first was not training
            first, read_first = last, sum(read.values())
        if looks % _SELDOM == 1:
            memory = max(memory, _memory(process.pid))
        if is_enough(first, last, seconds):
            break
    loop.close()
    if first is None or last is None or last.batches == first.batches:
        code = process.poll()
        told = "" if code is None else _last_line(said)
        why = f"the script ended with code {code}, and" if code else "the script"
        raise CommandError(
            f"{why} made too few iterations to measure its speed: give it {_WARM + 2 * _LEAST} or more"
            + (f" (it said: {told})" if told else "")
        )
    return _Watched(first, last, read_first, sum(read.values()), memory)


def is_enough(first: Steps, last: Steps, seconds: float) -> bool:
    """Whether a loop was watched for so long, and for whole epochs if it is worth waiting for the end of one."""
    batches, took_s = last.batches - first.batches, last.left_at - first.left_at
    if took_s < seconds or batches < _LEAST:
        return False
    length = last.epoch_length or 1
    whole = -(-batches // length) * length
    return batches % length <= _BEYOND * batches or took_s * whole / batches > _LONGEST * seconds


def _last_line(said: IO[bytes]) -> str:
    size = os.fstat(said.fileno()).st_size
    lines = os.pread(said.fileno(), _TAIL, max(0, size - _TAIL)).decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _memory(session: int) -> int:
    """Proportional set sizes of all processes of a session."""
    return 1024 * sum(_told(session, "smaps_rollup", "Pss:").values())


def _read(session: int) -> dict[int, int]:
    """Bytes that each process of a session has had read from disks."""
    return _told(session, "io", "read_bytes:")


def _told(session: int, name: str, field: str) -> dict[int, int]:
    """A number that the kernel tells of each process of a session."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    lines = (entry / name).read_text().splitlines()
                    found[int(entry.name)] = next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)
            except OSError:
                continue  # it has just gone
    return found
