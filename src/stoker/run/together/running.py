"""A job under `stoker run`, seen from outside: its process, and what its training loader publishes of itself.

The job has a process group of its own, so that all of it can be ended.
`pause` stops the training process alone: its workers finish what they were asked for and then hold nothing. Should this
process be killed meanwhile, the kernel ends the group of a job that is stopped: it is an orphan then (SIGHUP, SIGCONT).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from stoker.errors import CommandError
from stoker.host import process
from stoker.live import folder
from stoker.live.follow import Following, training
from stoker.live.record import Seen
from stoker.measure.busy import descendants
from stoker.run.together.jobs import TogetherJob

LOOK_S = 0.005
_FAMILY_EVERY_S = 0.5
_GRACE_S = 5.0
_TAIL = 2000
_POINT_S = 0.5
_READ = "samples", "hits", "misses", "bytes_cache", "bytes_storage"


class Running:
    """A job that was started here, or one that runs already."""

    def __init__(self, name: str, pid: int, popen: "subprocess.Popen[bytes] | None" = None, words: int = -1) -> None:
        self.name, self.pid = name, pid
        self.began_at = time.monotonic()
        self.first_at: float | None = None
        """When the loop got its first batch."""
        self.paused_s = 0.0
        """How long it was paused since then, all together."""
        self.seen: Seen | None = None
        """What the training loader last told, with what all ranks have read."""
        self.points: list[tuple[float, int]] = []
        """Its batches, moment by moment."""
        self.ended_at: float | None = None
        """When it was seen to have ended."""
        self.code: int | None = None
        self._popen, self._words = popen, words
        found = process.find(pid)
        self._started = 0 if found is None else found.started
        self._family: set[int] = {pid}
        self._following = Following(lambda facts: facts.pid in self._family)
        self._family_at = 0.0
        self.is_paused, self._paused_at = False, 0.0
        self._is_asked = self._is_ended = False
        self.only_evaluates = False
        """Whether its loaders were used without gradients alone, so far."""

    @classmethod
    def start(cls, job: TogetherJob, seed: int, cache_bytes: int, *, quietly: bool = False) -> Self:
        """Start a job; quietly, what it says is kept, and told only if it fails."""
        command = [
            sys.executable,
            "-m",
            "stoker",
            "run",
            "--seed",
            str(seed),
            "--cache",
            f"{cache_bytes}B",
            "--",
            *job.words,
        ]
        words = os.memfd_create("said") if quietly else -1
        output = words if quietly else None
        popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0)
        return cls(job.name, popen.pid, popen, words)

    @property
    def startup_s(self) -> float:
        """From the start to the first batch."""
        return 0.0 if self.first_at is None else self.first_at - self.began_at

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.ended_at is not None

    def look(self) -> Seen | None:
        """Look at it once more; what its training loader tells, if it has one by now."""
        if self.ended_at is None and not self._lives():
            self.ended_at = time.monotonic()
        at = time.monotonic()
        if at - self._family_at > _FAMILY_EVERY_S and self.seen is None:  # ranks are started by a launcher
            self._family_at, self._family = at, {self.pid, *descendants(self.pid)}
        records = self._following.look()
        self.seen = of_all_ranks(records)
        self.only_evaluates = self.seen is None and any(not one.facts.rank for one in records)
        seen = self.seen
        if seen is not None and seen.batches:
            self.first_at = seen.left_at if self.first_at is None else self.first_at
            at_s, batches = self.points[-1] if self.points else (-_POINT_S, 0)
            if seen.left_at - at_s >= _POINT_S or (self.is_over and seen.batches > batches):
                self.points.append((seen.left_at, seen.batches))
        if self.is_over:
            self._following.close()
        return self.seen

    def _lives(self) -> bool:
        if self._popen is None:
            return process.is_alive(self.pid, self._started)
        self.code = self._popen.poll()
        return self.code is None

    def failure(self, what: str) -> CommandError:
        """What to raise when it has ended too early."""
        said = f": {tail}" if (tail := self._tail()) else ""
        code = "" if self.code is None else f"with code {self.code} "  # of one that was not started here it is not known
        return CommandError(f"{self.name} ended {code}{what}{said}")

    def _tail(self) -> str:
        """The last line that it said."""
        if self._words < 0:
            return ""
        size = os.fstat(self._words).st_size
        text = os.pread(self._words, _TAIL, max(0, size - _TAIL)).decode("utf-8", "replace")
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

    def pause(self) -> None:
        """Stop its training loop."""
        if not self.is_paused and self.seen is not None:
            self.is_paused, self._paused_at = True, time.monotonic()
            self._signal(self.seen.facts.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let its training loop go on."""
        if self.is_paused and self.seen is not None:
            self.is_paused = False
            self.paused_s += time.monotonic() - self._paused_at
            self._signal(self.seen.facts.pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Let it begin to end, unless it was running before: of several jobs all do so at once."""
        if self._popen is not None and not self._is_asked:
            self._is_asked = True  # once: what it does at the first signal is not to be held up by a second one
            for number in (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)

    def end(self) -> None:
        """End all of it, unless it was running before."""
        self._following.close()
        if self._popen is None or self._is_ended:
            return
        self.ask_to_end()
        self._is_ended = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.code = self._popen.wait()
        if self._words >= 0:
            os.close(self._words)
            self._words = -1

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def ending(jobs: Sequence[Running] | list[Running]) -> Iterator[None]:
    """However this ends, no job that was started is left behind."""
    try:
        yield
    finally:
        for job in jobs:
            job.ask_to_end()
        for job in jobs:
            job.end()
        folder.loaders()  # which removes the records of those that were killed


def of_all_ranks(records: Sequence[Seen]) -> Seen | None:
    """What the training loader of the first rank tells, with what all ranks have read; None if it has none."""
    ranks = sorted({one.facts.rank or 0 for one in records})
    found = {rank: training([one for one in records if (one.facts.rank or 0) == rank]) for rank in ranks}
    first, some = found.get(0), [one for one in found.values() if one is not None]
    if first is None or len(some) == 1:
        return first
    return replace(first, **{name: sum(getattr(one, name) for one in some) for name in _READ})
