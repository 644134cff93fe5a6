"""Who is first: the policies. Each puts all jobs, those that run and those that wait, into one order.

FIFO    by arrival.
SRTF    least remaining time first, at the speed of the proportional share.
SRSF    the same times GPUs: least remaining service first. Where jobs differ in GPUs, a large one passes fewer small ones.
LAS     least attained service first: seconds times GPUs.
FTF     largest finish-time unfairness first: time in the system plus remaining time, over the time alone. As published it
        is the smallest first, which serves those who are served best.
DRF     progressive filling: the next job is that of the user with the least dominant share; among equals of the user who
        has had least so far.
Tetris  the job whose demand points most in the direction of what is free, plus a bonus for little remaining time.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from stoker.errors import ConfigError
from stoker.schedule.job import Job, Lease
from stoker.schedule.place import Cluster


class Entry:
    """A job in the system, and what it has behind it."""

    __slots__ = ("attained_s", "base_rate", "done", "job", "lease", "leases", "ready_s", "seen_s", "sequence")

    def __init__(self, job: Job, sequence: int, base_rate: float) -> None:
        self.job, self.sequence, self.base_rate = job, sequence, base_rate
        self.done = 0.0
        self.attained_s = 0.0
        """Seconds times GPUs."""
        self.lease: Lease | None = None
        self.leases = 0
        self.seen_s = 0.0
        """Until when `done` and `attained_s` count."""
        self.ready_s = 0.0
        """When the lease's start is over, and iterations begin."""

    @property
    def remaining_s(self) -> float:
        """Seconds to its end with the proportional share."""
        return max(0.0, self.job.iterations - self.done) / self.base_rate

    def is_starting(self, now: float) -> bool:
        """Whether it has a lease with which it could not do anything yet."""
        return self.lease is not None and self.ready_s >= now > self.lease.since_s

    def unfairness(self, now: float) -> float:
        """Its time from arrival to end, if it runs from now on, over its time alone."""
        return (now - self.job.arrival_s + self.remaining_s) * self.base_rate / self.job.iterations


Order = Callable[[Sequence[Entry], float, Cluster], list[Entry]]


def fifo(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By arrival."""
    return sorted(entries, key=lambda entry: (entry.job.arrival_s, entry.sequence))


def srtf(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By remaining time."""
    return sorted(entries, key=lambda entry: (entry.remaining_s, entry.sequence))


def srsf(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By remaining time and GPUs."""
    return sorted(entries, key=lambda entry: (entry.remaining_s * entry.job.gpus, entry.sequence))


def las(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By attained service."""
    return sorted(entries, key=lambda entry: (entry.attained_s, entry.sequence))


def ftf(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By unfairness, the largest first."""
    return sorted(entries, key=lambda entry: (-entry.unfairness(now), entry.sequence))


def ftf_as_published(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By unfairness, the smallest first."""
    return sorted(entries, key=lambda entry: (entry.unfairness(now), entry.sequence))


def drf(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By the dominant share of the user, which grows with each job that is taken."""
    queues: dict[str, list[Entry]] = defaultdict(list)
    attained: dict[str, float] = defaultdict(float)
    for entry in entries:
        user = entry.job.user or f"job {entry.job.id}"
        queues[user].append(entry)
        attained[user] += entry.attained_s / entry.job.gpus * _dominant(entry, cluster)
    heap = []
    for user, queue in queues.items():
        queue.sort(key=lambda entry: (entry.job.arrival_s, entry.sequence), reverse=True)
        heap.append((0.0, attained[user], queue[-1].sequence, user))
    heapq.heapify(heap)
    ordered = []
    while heap:
        share, before, _, user = heap[0]
        entry = queues[user].pop()
        ordered.append(entry)
        if queues[user]:
            heapq.heapreplace(heap, (share + _dominant(entry, cluster), before, queues[user][-1].sequence, user))
        else:
            heapq.heappop(heap)
    return ordered


def _dominant(entry: Entry, cluster: Cluster) -> float:
    demand, total = cluster.asks(entry.job).demand, cluster.total
    return max(demand.gpus / total.gpus, demand.cpus / total.cpus, demand.memory_gb / total.memory_gb)


def tetris(entries: Sequence[Entry], now: float, cluster: Cluster) -> list[Entry]:
    """By alignment with what is free, and by remaining time."""
    if not entries:
        return []
    kinds: dict[object, list[Entry]] = defaultdict(list)
    for entry in srtf(entries, now, cluster)[::-1]:
        kinds[cluster.asks(entry.job)].append(entry)  # the last of each kind has least to do
    queues = list(kinds.values())
    total = np.array([cluster.total.gpus, cluster.total.cpus, cluster.total.memory_gb])
    wanted = [cluster.asks(queue[0].job).demand for queue in queues]
    demand = np.array([(one.gpus, one.cpus, one.memory_gb) for one in wanted]) / total
    longest = max(entry.remaining_s for entry in entries) or 1.0
    nearness = np.array([1 - queue[-1].remaining_s / longest for queue in queues])
    free, ordered = np.ones(3), []
    epsilon = float((demand @ free).mean())
    while free[0] > 1e-9 and np.isfinite(nearness).any():
        score = demand @ free + epsilon * nearness
        score[demand[:, 0] > free[0] + 1e-9] = -np.inf
        best = int(score.argmax())
        if not np.isfinite(score[best]):
            break
        ordered.append(queues[best].pop())
        nearness[best] = 1 - queues[best][-1].remaining_s / longest if queues[best] else -np.inf
        free = np.maximum(0.0, free - demand[best])
    return ordered + srtf([entry for queue in queues for entry in queue], now, cluster)


POLICIES: dict[str, Order] = {
    "fifo": fifo, "srtf": srtf, "srsf": srsf, "las": las, "ftf": ftf, "drf": drf, "tetris": tetris
}  # fmt: skip


def order_of(policy: str, *, as_published: bool = False) -> Order:
    """The order of a policy. Raises ConfigError where there is none of that name."""
    if policy not in POLICIES:
        raise ConfigError(f"there is no policy {policy!r}: choose one of {', '.join(POLICIES)}")
    return ftf_as_published if policy == "ftf" and as_published else POLICIES[policy]
