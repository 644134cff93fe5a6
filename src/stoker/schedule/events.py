"""What a driver tells the engine, and what the engine tells a driver to do.

A driver is the simulator, or the daemon beside a real cluster. Drivers have the clock: the engine gets the time with each
event.
"""

from dataclasses import dataclass

from stoker.schedule.job import Job, Lease, Server


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job is there. One that is known from before a restart of the driver says what it has behind it."""

    job: Job
    done: float = 0.0
    """Iterations."""
    attained_s: float = 0.0
    """Seconds that it has run, times its GPUs."""
    leases: int = 0
    """How many it has had, the one that it may still have among them."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A lease that was given before a restart of the driver still runs."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A job has so many iterations behind it. With a rate, its matrix is corrected where it was off."""

    job_id: str
    done: float
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A job has come to its end, well or not. Its place is free at the next round."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A job's lease has ended without the job being done, and not on the engine's word. It waits again."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody wants a job to end."""

    job_id: str


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A server is gone, with all that ran on it. Its jobs wait again."""

    name: str


@dataclass(frozen=True, slots=True)
class ServerBack:
    """A server is there: a new one, or one that was lost."""

    server: Server


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round is over: who runs in the next one is decided now."""


Event = Submitted | Adopted | JobProgress | Finished | Stopped | Cancelled | ServerLost | ServerBack | RoundEnded


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job that does not run, from its last checkpoint if it has one."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Renew:
    """Leave a job as it is for another round."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Change:
    """Checkpoint and stop the one lease, then start the other."""

    lease: Lease
    before: Lease


@dataclass(frozen=True, slots=True)
class End:
    """Checkpoint and stop a job. It waits again, unless it was cancelled."""

    lease: Lease
    why: str


Action = Start | Renew | Change | End
