"""What the scheduler speaks of: servers, jobs, and what a job is given. Values only.

Memory is in GB (10^9 bytes) and time in seconds. CPUs may be fractions, GPUs may not.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from stoker.schedule.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Server:
    """A machine, and what the scheduler may hand out of it."""

    name: str
    gpus: int
    cpus: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job wants, over all of its GPUs."""

    gpus: int
    cpus: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was submitted."""

    id: str
    gpus: int
    iterations: int
    """How many it has in all."""
    matrix: Matrix
    """How fast it is, by what it is given for each GPU."""
    arrival_s: float = 0.0
    model: str = ""
    user: str = ""
    """Whose it is; jobs without a user are each their own user."""
    restartable: bool = True
    """Whether it can be stopped and go on elsewhere. One that cannot keeps its first lease to its end."""


@dataclass(frozen=True, slots=True)
class ServerShare:
    """The part of one server that a job has."""

    server: str
    gpus: int
    cpus: float
    memory_gb: float


@dataclass(frozen=True)
class Placement:
    """Where a job runs: one share, or several with the same CPUs and memory for each GPU."""

    shares: tuple[ServerShare, ...]

    @cached_property
    def demand(self) -> Demand:
        """All shares together."""
        return Demand(
            sum(share.gpus for share in self.shares),
            sum(share.cpus for share in self.shares),
            sum(share.memory_gb for share in self.shares),
        )

    @property
    def per_gpu(self) -> tuple[float, float]:
        """CPUs and memory of that GPU which has least: a job is as fast as its slowest part."""
        return (
            min(share.cpus / share.gpus for share in self.shares),
            min(share.memory_gb / share.gpus for share in self.shares),
        )

    def is_like(self, other: "Placement") -> bool:
        """Whether another one gives the same, but for rounding."""
        return len(self.shares) == len(other.shares) and all(
            (one.server, one.gpus) == (its.server, its.gpus)
            and math.isclose(one.cpus, its.cpus)
            and math.isclose(one.memory_gb, its.memory_gb)
            for one, its in zip(self.shares, other.shares, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """A job's right to run somewhere, until the engine says otherwise."""

    job_id: str
    number: int
    """Counts the leases of this job: the first is 1. Job and number together name a lease for ever."""
    placement: Placement
    rate: float
    """Iterations per second that the job's matrix promises."""
    proportional_rate: float
    """What the matrix promises for the GPU-proportional share of the same servers."""
    since_s: float

    def storage_mb_s(self, matrix: Matrix, share: ServerShare) -> float:
        """What the job reads from storage on one of its servers, by its matrix."""
        return share.gpus * matrix.storage_mb_s(share.memory_gb / share.gpus, self.rate)
