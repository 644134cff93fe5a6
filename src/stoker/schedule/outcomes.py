"""What becomes of jobs when their leases end: they are done, have failed, were cancelled, or wait for the next lease."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from stoker.errors import ConfigError
from stoker.schedule.engine import Engine
from stoker.schedule.events import Finished, JobProgress, Stopped, Submitted
from stoker.schedule.job import Job, Lease, Server
from stoker.schedule.marks import SAVED, steps_saved
from stoker.schedule.matrix import Matrix
from stoker.schedule.state import ENDED, KnownJob, KnownLease, State

LOST = -1000
"""In the place of an exit code: nobody knows how the lease ended."""
KNOWN_AFTER = 20
"""Batches after which a lease has shown what it does."""
_TRIES = 5
"""A job that dies so often at the same checkpoint has failed."""
_LOST_TRIES = 10
"""And so has one of which so many leases in a row were lost there, though the cluster had taken them."""
_LITTLE = 1e-3
"""By which a job of which nothing is known is held to gain from each larger share."""


def as_known(known: KnownJob, servers: Sequence[Server]) -> Job:
    """A job for the engine. One without a profile wants its GPUs' share, and nothing is taken of that."""
    if known.is_profiled:
        return known.job
    cpus = tuple(sorted({server.cpus / server.gpus for server in servers}))
    memory = tuple(sorted({server.memory_gb / server.gpus for server in servers}))
    rates = tuple(tuple(1.0 + _LITTLE * (row + column) for column in range(len(memory))) for row in range(len(cpus)))
    return replace(known.job, matrix=Matrix(cpus, memory, rates, (cpus[-1], memory[-1])))


class Outcomes:
    """Writes down what has ended, and tells the engine."""

    def __init__(self, state: State, engine: Engine, tell: Callable[[str], None]) -> None:
        self._state, self._engine, self._tell = state, engine, tell

    def lease_over(self, known: KnownLease, code: int, word: str, now: float) -> None:
        """A lease has ended: what becomes of its job."""
        lease, job = known.lease, self._state.job(known.lease.job_id)
        saved = steps_saved(self._state.job_folder(lease.job_id))
        how = "lost" if code == LOST else f"ended with code {code}{': ' if word else ''}{word}"
        with self._state.decision():
            self._state.change_lease(lease, status="ended", ended_at=now, code=code, word=word)
            self._state.note(lease.job_id, lease.number, how)
            if job.status in ENDED:
                return
            if code == 0:
                self._state.change_job(lease.job_id, done=float(max(saved, self._reached(lease))))
                self.end_job(lease.job_id, "done", 0, "", now)
            elif job.wants_cancel:
                if not self._state.leases(lease.job_id):
                    self.end_job(lease.job_id, "cancelled", code, "", now)
            elif code == LOST and not known.ending and self._is_hopeless(lease.job_id, saved):
                word = f"its last {_LOST_TRIES} leases were lost before they could say how they ended"
                self.end_job(lease.job_id, "failed", None, f"{word}: {self._last_line(lease)}", now)
            elif code == LOST or known.ending or (code == SAVED and word):  # the word says who told it
                self._state.change_job(lease.job_id, done=float(saved))
                if code == SAVED and known.ending and job.job.restartable and saved == self._saved_before(lease):
                    self._bind(job, saved, now)
                self._wait_again(lease, saved, now)
            elif code < 0 or code == SAVED:
                self._died(job, lease, saved, code, now)
            else:
                self.end_job(lease.job_id, "failed", code, word or self._last_line(lease), now)

    def end_job(self, job_id: str, status: str, code: int | None, word: str, now: float) -> None:
        """A job is over."""
        with self._state.decision():
            self._state.change_job(job_id, status=status, ended_at=now, code=code, word=word)
            self._state.note(job_id, None, f"{status} {word}".strip())
            for one in self._state.leases(job_id):
                if one.status == "planned":
                    self._state.change_lease(one.lease, status="ended", ended_at=now, word="the job has ended")
        self._tell(f"job {job_id} {status}{': ' if word else ''}{word}")
        with contextlib.suppress(ConfigError):  # it never came to the engine, or was cancelled there
            self._engine.handle(Finished(job_id), now)

    def is_current(self, lease: Lease) -> bool:
        """Whether the engine holds that the job has this lease."""
        try:
            current = self._engine.standing(lease.job_id).lease
        except ConfigError:
            return False
        return current is not None and current.number == lease.number

    def _wait_again(self, lease: Lease, saved: int, now: float) -> None:
        if self.is_current(lease):
            self._engine.handle(JobProgress(lease.job_id, float(saved)), now)
            self._engine.handle(Stopped(lease.job_id), now)

    def _died(self, job: KnownJob, lease: Lease, saved: int, code: int, now: float) -> None:
        deaths = job.deaths + 1 if saved == job.died_at else 1
        self._state.change_job(lease.job_id, deaths=deaths, died_at=saved, done=float(saved))
        if deaths < _TRIES:
            self._wait_again(lease, saved, now)
            return
        word = f"it died {deaths} times at iteration {saved}: {self._last_line(lease)}"
        self.end_job(lease.job_id, "failed", code, word, now)

    def _is_hopeless(self, job_id: str, saved: int) -> bool:
        """Whether a job's leases are lost again and again, as of one whose node has no Python, or too little memory.

        Those that the cluster refused do not count: a limit of one's account is there for a while, and then is not.
        """
        last = [one for one in self._state.leases(job_id, living=False) if one.given_at is not None][-_LOST_TRIES:]
        ready = (self._state.marks(one.lease).read("ready") or {"saved": saved} for one in last)
        no_further = all(int(mark["saved"]) == saved for mark in ready)
        return len(last) == _LOST_TRIES and no_further and all(one.code == LOST and not one.ending for one in last)

    def _reached(self, lease: Lease) -> int:
        """The iterations that a lease has told."""
        ready, said = (self._state.marks(lease).read(name) for name in ("ready", "progress"))
        return 0 if ready is None or said is None else int(ready["saved"] + said["batches"])

    def _saved_before(self, lease: Lease) -> int | None:
        """The checkpoint that a lease began with, if it had time for another one; else None."""
        ready, said = (self._state.marks(lease).read(name) for name in ("ready", "progress"))
        if ready is None or said is None or said["batches"] < KNOWN_AFTER:
            return None
        return int(ready["saved"])

    def _bind(self, known: KnownJob, saved: int, now: float) -> None:
        """A job was told to end and was not saved: its next lease lasts to its end."""
        job = replace(as_known(known, self._engine.cluster.servers), restartable=False)
        standing = self._engine.standing(job.id)
        number = max(one.lease.number for one in self._state.leases(job.id, living=False))
        self._state.change_job(job.id, restartable=0)
        self._state.note(job.id, None, "it cannot be saved, so from now on it is not stopped any more")
        self._tell(f"job {job.id} cannot be saved: its next lease lasts to its end")
        self._engine.handle(Finished(job.id), now)
        self._engine.handle(Submitted(job, saved, standing.attained_s, number), now)
        for one in self._state.leases(job.id):  # what was planned may be more than could ever be taken back
            self._state.change_lease(one.lease, status="ended", ended_at=now)

    def _last_line(self, lease: Lease) -> str:
        """What a job has printed last."""
        try:
            with (self._state.job_folder(lease.job_id) / "output").open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 4096))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")[:300]
