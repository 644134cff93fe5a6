"""The scheduler itself: events in, actions out. It has no clock, starts nothing, and reads nothing.

At the end of each round all jobs are put in order (`queue`), the first whose GPUs fit the cluster together are chosen, and
the mechanism (`mechanisms`, `opt`) gives each its place. A job whose place stays the same keeps its lease. Under tune and
opt no job is slower than with the proportional share of its servers: that is asserted for each lease.

A lease that has not got beyond its start stays, whoever is first: jobs that take turns get further even if a start takes
longer than a round.

Where a change of a lease costs time, the leases are changed only if all jobs together gain more in one round than they lose
by it; otherwise those that run stay as they are, and new ones are put beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from stoker.errors import ConfigError
from stoker.schedule.events import (
    Action,
    Adopted,
    Cancelled,
    Change,
    End,
    Event,
    Finished,
    JobProgress,
    Renew,
    RoundEnded,
    ServerBack,
    ServerLost,
    Start,
    Stopped,
    Submitted,
)
from stoker.schedule.job import Demand, Job, Lease, Placement, Server
from stoker.schedule.mechanisms import MECHANISMS, Mechanism, proportional, tune_as_published
from stoker.schedule.place import EPSILON, Cluster, Grant, Packing, at_most_its_part
from stoker.schedule.queue import Entry, order_of
from stoker.schedule.rules import Rules
from stoker.schedule.staying import stay

_OFF = 0.05
"""A measured rate that differs by this part from the promised one corrects the matrix."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands: what it has, what it would like, and who is before it."""

    job: Job
    lease: Lease | None
    wanted: Demand
    done: float
    attained_s: float
    position: int
    """In the order of the last round, from 0; -1 if it came later."""
    gpus_ahead: int
    """Of those before it, which have leases."""


class Engine:
    """Decides who runs where. One event at a time, each with the time at which it happened."""

    def __init__(self, servers: Sequence[Server], rules: Rules) -> None:
        self.rules = rules
        self._order = order_of(rules.policy, as_published=rules.as_published)
        self._mechanism = _mechanism(rules)
        self._promises = rules.mechanism in ("tune", "opt")
        self._known = {server.name: server for server in servers}
        self._lost: set[str] = set()
        self.cluster = Cluster(servers)
        self._entries: dict[str, Entry] = {}
        self._sequence = 0
        self._changed = True
        """Whether anything happened since the last round that could change its outcome."""
        self._last: tuple[str, ...] = ()

    # ---- what is asked

    @property
    def largest(self) -> int:
        """GPUs of the largest server, also of those that are lost now."""
        return max((server.gpus for server in self._known.values()), default=0)

    @property
    def leases(self) -> list[Lease]:
        """Of all jobs that run."""
        return [entry.lease for entry in self._entries.values() if entry.lease is not None]

    @property
    def waiting(self) -> list[Job]:
        """Jobs without a lease."""
        return [entry.job for entry in self._entries.values() if entry.lease is None]

    def standing(self, job_id: str) -> Standing:
        """How a job stands."""
        entry = self._entry(job_id)
        position = self._last.index(job_id) if job_id in self._last else -1
        before = self._last[: max(0, position)]
        ahead = sum(
            one.job.gpus for name in before if (one := self._entries.get(name)) is not None and one.lease is not None
        )
        wanted = self.cluster.asks(entry.job).demand
        return Standing(entry.job, entry.lease, wanted, entry.done, entry.attained_s, position, ahead)

    # ---- what happens

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in what happened; what is to be done. An event that cannot be raises ConfigError, and changes nothing."""
        match event:
            case RoundEnded():
                return self._round(now)
            case Submitted():
                self._submit(event, now)
            case Adopted(lease):
                self._adopt(lease, now)
            case JobProgress(job_id, done, rate):
                self._progress(self._entry(job_id), done, rate, now)
            case Finished(job_id):
                self._entry(job_id)
                self._forget(job_id)
            case Stopped(job_id):
                self._stop(self._entry(job_id), now)
            case Cancelled(job_id):
                held = self._entry(job_id).lease
                self._forget(job_id)
                return [End(held, "cancelled")] if held is not None else []
            case ServerLost(name):
                return self._lose(name, now)
            case ServerBack(server):
                Cluster([server])  # an error before anything changes
                self._known[server.name] = server
                self._lost.discard(server.name)
                self._rebuild()
        return []

    def _submit(self, event: Submitted, now: float) -> None:
        job = event.job
        if job.id in self._entries:
            raise ConfigError(f"job {job.id} is there already")
        if job.gpus < 1 or job.iterations < 1:
            raise ConfigError(f"job {job.id} needs at least one GPU and one iteration")
        most = sum(server.gpus for server in self._known.values())
        if job.gpus > most:
            raise ConfigError(f"job {job.id} asks for {job.gpus} GPUs, and the cluster has {most}")
        entry = self._entries[job.id] = Entry(job, self._sequence, self._base_rate(job))
        self._sequence += 1
        entry.done, entry.attained_s, entry.leases, entry.seen_s = event.done, event.attained_s, event.leases, now
        self._changed = True

    def _adopt(self, lease: Lease, now: float) -> None:
        entry = self._entry(lease.job_id)
        if any(share.server not in self.cluster.number for share in lease.placement.shares):
            raise ConfigError(f"job {lease.job_id} has a lease on a server that is not there")
        if not entry.job.restartable:
            shares = (at_most_its_part(share, self._known[share.server]) for share in lease.placement.shares)
            lease = replace(lease, placement=Placement(tuple(shares)))
        for share in lease.placement.shares:
            server = self._known[share.server]
            there = [share, *(its for one in self.leases for its in one.placement.shares if its.server == share.server)]
            if (
                sum(its.gpus for its in there) > server.gpus
                or sum(its.cpus for its in there) > server.cpus + EPSILON
                or sum(its.memory_gb for its in there) > server.memory_gb + EPSILON
            ):
                raise ConfigError(f"server {share.server} has less than was given of it")
        entry.lease, entry.leases, entry.seen_s = lease, max(entry.leases, lease.number), now
        entry.ready_s = lease.since_s + self.rules.start_s(lease.placement.demand.cpus)
        self._changed = True

    def _progress(self, entry: Entry, done: float, rate: float | None, now: float) -> None:
        self._advance(entry, now)
        entry.done = done
        if rate is not None and entry.lease is not None and abs(rate - entry.lease.rate) > _OFF * entry.lease.rate:
            entry.job = replace(entry.job, matrix=entry.job.matrix.corrected(*entry.lease.placement.per_gpu, rate))
            entry.base_rate = self._base_rate(entry.job)
            entry.lease = replace(entry.lease, rate=rate)
            self._changed = True

    def _stop(self, entry: Entry, now: float) -> None:
        self._advance(entry, now)
        entry.lease = None
        self._changed = True

    def _forget(self, job_id: str) -> None:
        del self._entries[job_id]
        self._changed = True

    def _lose(self, name: str, now: float) -> list[Action]:
        if name not in self._known:
            raise ConfigError(f"server {name} is not known")
        self._lost.add(name)
        actions: list[Action] = []
        for entry in self._entries.values():
            lease = entry.lease
            if lease is not None and any(share.server == name for share in lease.placement.shares):
                self._stop(entry, now)
                actions.append(End(lease, f"server {name} is lost"))
        self._rebuild()
        return actions

    def _rebuild(self) -> None:
        self.cluster = Cluster([server for name, server in self._known.items() if name not in self._lost])
        self._changed = True
        for entry in self._entries.values():
            entry.base_rate = self._base_rate(entry.job)

    # ---- a round

    def _round(self, now: float) -> list[Action]:
        for entry in self._entries.values():
            self._advance(entry, now)
        if not self._changed and self.rules.policy == "fifo":
            return [Renew(lease) for lease in self.leases]
        if not self.cluster.servers:
            return []
        ordered = self._order(list(self._entries.values()), now, self.cluster)
        self._last = tuple(entry.job.id for entry in ordered)
        bound = [entry for entry in ordered if not entry.job.restartable and entry.lease is not None]
        most = int(self.cluster.gpus.max() if self.rules.one_server else self.cluster.total.gpus)
        free = [one for one in ordered if (one.job.restartable or one.lease is None) and one.job.gpus <= most]
        free.sort(key=lambda one: not one.is_starting(now))
        chosen = free if self.rules.mechanism == "greedy" else self._runnable(free, bound)
        greedy_again = self.rules.mechanism == "greedy"
        running = [entry for entry in free if entry.lease is not None]
        if not self._changed and not greedy_again and {id(one) for one in chosen} == {id(one) for one in running}:
            return [Renew(lease) for lease in self.leases]
        packing = self._place(chosen, bound)
        self._changed = False
        return self._leases(packing, ordered, now)

    def _runnable(self, entries: Sequence[Entry], bound: Sequence[Entry]) -> list[Entry]:
        """The first in order whose GPUs fit together; who is too large for the rest is skipped."""
        left = self.cluster.total.gpus - sum(entry.job.gpus for entry in bound)
        chosen: list[Entry] = []
        beside = Packing(self.cluster, [self._grant(entry) for entry in bound]) if self.rules.one_server else None
        refused: set[int] = set()
        for entry in entries:
            gpus = entry.job.gpus
            if gpus > left or gpus in refused:
                continue
            if beside is not None and not beside.holds([gpus, *(one.job.gpus for one in chosen)]):
                refused.add(gpus)
                continue
            chosen.append(entry)
            left -= gpus
            if not left:
                break
        return chosen

    def _place(self, chosen: Sequence[Entry], bound: Sequence[Entry]) -> Packing:
        anew = self._packed(chosen, bound)
        stay(anew, {entry.job.id: entry.lease for entry in (*chosen, *bound) if entry.lease is not None})
        if not self.rules.starts_cost:
            return anew
        kept = self._packed(chosen, [*bound, *(entry for entry in chosen if entry.lease is not None)])
        must_move = self.rules.one_server and kept.is_spread
        return anew if must_move or self._worth(anew, chosen) > self._worth(kept, chosen) else kept

    def _packed(self, chosen: Sequence[Entry], kept: Sequence[Entry]) -> Packing:
        names = {entry.job.id for entry in kept}
        wanting = [(one.job.id, self.cluster.asks(one.job)) for one in chosen if one.job.id not in names]
        packed = self._mechanism(Packing(self.cluster, [self._grant(entry) for entry in kept]), wanting)
        if self.rules.one_server and packed.is_spread:  # the order of `proportional` is the one that was counted with
            packed = proportional(Packing(self.cluster, [self._grant(entry) for entry in kept]), wanting)
            packed.top_up(key for key, _ in wanting if self._promises)
        packed.check()
        return packed

    def _grant(self, entry: Entry) -> Grant:
        assert entry.lease is not None
        parts = tuple((self.cluster.number[share.server], share.gpus) for share in entry.lease.placement.shares)
        return Grant(
            entry.job.id, self.cluster.asks(entry.job), parts, *entry.lease.placement.per_gpu, not entry.job.restartable
        )

    def _worth(self, packing: Packing, chosen: Iterable[Entry]) -> float:
        """Seconds' worth of the proportional share that all jobs get done in a round."""
        total = 0.0
        for entry in chosen:
            grant = packing.grants.get(entry.job.id)
            if grant is not None:
                cpus = grant.cpus * grant.asks.gpus
                lost_s = 0.0 if self._is_same(entry.lease, grant) else self.rules.start_s(cpus)
                total += grant.rate / entry.base_rate * max(0.0, self.rules.round_s - lost_s)
        return total

    def _is_same(self, lease: Lease | None, grant: Grant) -> bool:
        return lease is not None and lease.placement.is_like(grant.placement(self.cluster))

    def _leases(self, packing: Packing, ordered: Iterable[Entry], now: float) -> list[Action]:
        ends: list[Action] = []
        rest: list[Action] = []
        for entry in ordered:
            before, grant = entry.lease, packing.grants.get(entry.job.id)
            if grant is None:
                if before is not None:
                    ends.append(End(before, "others are first"))
                    entry.lease = None
                continue
            placement = grant.placement(self.cluster)
            if before is not None and before.placement.is_like(placement):
                rest.append(Renew(before))
                continue
            floor = self.cluster.proportional_rate(entry.job.matrix, grant.parts)
            assert not self._promises or grant.rate >= floor * (1 - 1e-9), (
                f"job {entry.job.id} is below its proportional share"
            )
            entry.leases += 1
            lease = entry.lease = Lease(entry.job.id, entry.leases, placement, grant.rate, floor, now)
            entry.ready_s = now + self.rules.start_s(placement.demand.cpus)
            rest.append(Start(lease) if before is None else Change(lease, before))
        return ends + rest

    # ---- jobs

    def _entry(self, job_id: str) -> Entry:
        try:
            return self._entries[job_id]
        except KeyError:
            raise ConfigError(f"job {job_id} is not there") from None

    def _base_rate(self, job: Job) -> float:
        """With the proportional share of all servers, lost ones among them: a loss does not change the order."""
        known = self._known.values()
        gpus = sum(server.gpus for server in known)
        return job.matrix.rate(sum(one.cpus for one in known) / gpus, sum(one.memory_gb for one in known) / gpus)

    @staticmethod
    def _advance(entry: Entry, now: float) -> None:
        if entry.lease is not None:
            entry.attained_s += (now - entry.seen_s) * entry.job.gpus
            ran_s = now - max(entry.seen_s, entry.ready_s)
            if ran_s > 0:
                entry.done = min(float(entry.job.iterations), entry.done + entry.lease.rate * ran_s)
        entry.seen_s = now


def _mechanism(rules: Rules) -> Mechanism:
    names = (*MECHANISMS, "opt")
    if rules.mechanism not in names:
        raise ConfigError(f"there is no mechanism {rules.mechanism!r}: choose one of {', '.join(names)}")
    if rules.mechanism == "opt":
        return import_module("stoker.schedule.opt").opt  # type: ignore[no-any-return] # SciPy is loaded for this alone
    return tune_as_published if rules.mechanism == "tune" and rules.as_published else MECHANISMS[rules.mechanism]
