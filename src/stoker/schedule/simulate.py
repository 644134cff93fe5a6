"""The simulator: drives the engine through a trace, without waiting for anything.

A round begins at each multiple of its length. Jobs that have arrived by then are told, the engine decides, and each lease
runs at the rate that its matrix promises, after what its start costs. A job that ends inside a round frees its place at the
next.
"""

import heapq
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from stoker.schedule.engine import Engine
from stoker.schedule.events import Action, Change, End, Finished, Renew, RoundEnded, Start, Submitted
from stoker.schedule.job import Job, Lease, Server
from stoker.schedule.rules import Rules
from stoker.schedule.trace import check_sizes, check_times


@dataclass(frozen=True, slots=True)
class LeaseSpan:
    """A lease, from its start to its end."""

    lease: Lease
    begin_s: float
    end_s: float


@dataclass(slots=True)
class History:
    """What happened in a simulation."""

    jobs: list[Job]
    servers: list[Server]
    ends_s: dict[str, float] = field(default_factory=dict)
    segments: list[LeaseSpan] = field(default_factory=list)
    used: list[tuple[float, int, float, float]] = field(default_factory=list)
    """At the begin of each round: the time, and the GPUs, CPUs and GB that are given."""
    waiting: list[int] = field(default_factory=list)
    """Jobs without a place in each round."""
    decisions_s: list[float] = field(default_factory=list)
    switches: int = 0
    """Leases that were changed or ended before their job was done."""


class Simulation:
    """One trace on one cluster under one set of rules."""

    def __init__(self, jobs: Sequence[Job], servers: Sequence[Server], rules: Rules, log: TextIO | None = None) -> None:
        check_sizes(jobs, sum(server.gpus for server in servers))
        check_times(jobs, rules, sum(server.cpus for server in servers))
        self._jobs = sorted(jobs, key=lambda job: job.arrival_s)
        self._rules, self._log = rules, log
        self._engine = Engine(servers, rules)
        self._by_id = {job.id: job for job in self._jobs}
        self._done: dict[str, float] = dict.fromkeys(self._by_id, 0.0)
        self._running: dict[str, tuple[Lease, float]] = {}
        """The lease of each job that runs, and when its iterations began."""
        self._ends: list[tuple[float, str, int]] = []
        """A heap: when leases will see their jobs' ends."""
        self._used = [0, 0.0, 0.0]
        self.history = History(self._jobs, list(servers))

    def run(self, tell: Callable[[float], None] = lambda part: None) -> History:
        """Play until the last job has ended; `tell` is given the part of jobs that have."""
        arrived, number, total = 0, 0, len(self._jobs)
        while len(self.history.ends_s) < total:
            now = number * self._rules.round_s
            while arrived < total and self._jobs[arrived].arrival_s <= now:
                self._engine.handle(Submitted(self._jobs[arrived]), now)
                arrived += 1
            if arrived == len(self.history.ends_s):  # nobody is there: on to the round after the next arrival
                number = max(number + 1, -int(-self._jobs[arrived].arrival_s // self._rules.round_s))
                continue
            began = time.perf_counter()
            actions = self._engine.handle(RoundEnded(), now)
            self.history.decisions_s.append(time.perf_counter() - began)
            for action in actions:
                self._do(action, now)
            self._note(now, arrived)
            number += 1
            self._finish(number * self._rules.round_s)
            tell(len(self.history.ends_s) / total)
        return self.history

    def _do(self, action: Action, now: float) -> None:
        match action:
            case Renew():
                pass
            case Start(lease):
                self._begin(lease, now)
            case Change(lease, before):
                self._stop(before, now)
                self._begin(lease, now)
            case End(lease):
                self._stop(lease, now)

    def _begin(self, lease: Lease, now: float) -> None:
        job = self._by_id[lease.job_id]
        ready_s = now + self._rules.start_s(lease.placement.demand.cpus)
        self._running[job.id] = lease, ready_s
        left = max(0.0, job.iterations - self._done[job.id])
        heapq.heappush(self._ends, (ready_s + left / lease.rate, job.id, lease.number))
        self._count(lease, 1)

    def _stop(self, lease: Lease, now: float) -> None:
        self._leave(lease, now)
        self.history.switches += 1

    def _leave(self, lease: Lease, now: float) -> None:
        _, ready_s = self._running.pop(lease.job_id)
        self._done[lease.job_id] += lease.rate * max(0.0, now - ready_s)
        self.history.segments.append(LeaseSpan(lease, lease.since_s, now))
        self._count(lease, -1)

    def _finish(self, until_s: float) -> None:
        """Tell all ends up to a time, in their order."""
        while self._ends and self._ends[0][0] <= until_s:
            end_s, job_id, number = heapq.heappop(self._ends)
            running = self._running.get(job_id)
            if running is None or running[0].number != number:
                continue  # that lease has ended before
            self._leave(running[0], end_s)
            self.history.ends_s[job_id] = end_s
            self._engine.handle(Finished(job_id), end_s)

    def _count(self, lease: Lease, sign: int) -> None:
        demand = lease.placement.demand
        self._used[0] += sign * demand.gpus
        self._used[1] += sign * demand.cpus
        self._used[2] += sign * demand.memory_gb

    def _note(self, now: float, arrived: int) -> None:
        self.history.used.append((now, int(self._used[0]), self._used[1], self._used[2]))
        self.history.waiting.append(arrived - len(self.history.ends_s) - len(self._running))
        if self._log is not None:
            for lease, _ in self._running.values():
                for share in lease.placement.shares:
                    row = {
                        "time_s": now, "job": lease.job_id, "server": share.server, "gpus": share.gpus, "cpus": share.cpus,
                        "memory_gb": share.memory_gb, "rate": lease.rate,
                        "storage_mb_s": lease.storage_mb_s(self._by_id[lease.job_id].matrix, share),
                    }  # fmt: skip
                    self._log.write(json.dumps(row) + "\n")
