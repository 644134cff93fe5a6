"""The live driver of the engine. It asks what is there, tells the engine, writes down what that decides, and has it done.

Nothing is kept here that is not in the state: a daemon that is started after a kill -9 reads it, asks the cluster, and
goes on. A lease has ended if it says so (`exit`), or if the cluster does not know it and nobody holds its job's lock; a
time that passes ends none. Orders may be given again, and have the same effect.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.errors import CommandError, ConfigError
from stoker.schedule.backend import Backend
from stoker.schedule.costs import start_cost
from stoker.schedule.engine import Engine
from stoker.schedule.events import (
    Action,
    Adopted,
    Cancelled,
    Change,
    End,
    JobProgress,
    Renew,
    RoundEnded,
    ServerBack,
    ServerLost,
    Start,
    Submitted,
)
from stoker.schedule.giving import Giving
from stoker.schedule.job import Lease
from stoker.schedule.marks import SAVED, if_free, steps_saved
from stoker.schedule.outcomes import KNOWN_AFTER, LOST, Outcomes, as_known
from stoker.schedule.rules import Rules
from stoker.schedule.state import KnownJob, KnownLease, State
from stoker.schedule.why import sentence

_KNOWN_AFTER_S = 10.0
"""A lease's rate is known after so many seconds."""
_LATEST = 20
"""The cost of a start is told by so many leases."""


class Daemon:
    """One scheduler over one cluster. `look` does all that is to be done now."""

    def __init__(
        self,
        state: State,
        backend: Backend,
        rules: Rules,
        *,
        core: float = 1.0,
        measures: bool = True,
        tell: Callable[[str], None] = print,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state, self._backend, self._tell, self._clock = state, backend, tell, clock
        self._giving = Giving(state, backend, core, tell)
        self._measures = measures
        """Whether the cost of a switch is measured, and matrices are corrected by what jobs do."""
        self._last_round = float("-inf")
        found = backend.nodes()
        if found is None:
            raise CommandError(f"{_silent(backend)}; start the daemon again when it does")
        if not any(node.is_up for node in found):
            raise CommandError("no node with GPUs is up: `sinfo` shows the nodes, and --partition chooses others")
        self._is_silent = False
        self._up = {node.server.name: node.is_up for node in found}
        self._engine = Engine([node.server for node in found], replace(rules, one_server=True, core=core))
        for node in found:
            if not node.is_up:
                self._engine.handle(ServerLost(node.server.name), clock())
        self._outcomes = Outcomes(state, self._engine, tell)
        self._take_over()

    # ---- what is there

    def look(self) -> bool:
        """Take in what happened, decide if a round is over, and act. Returns whether there is any job left."""
        now = self._clock()
        self._look_at_nodes(now)
        known = self._backend.leases()
        for lease in self._state.leases():
            self._look_at_lease(lease, known, now)
        self._look_at_wishes(now)
        if now - self._last_round >= self._engine.rules.round_s:
            self._round(now)
        self._giving.act(known or {}, now)
        return bool(self._state.jobs("new", "queued"))

    def _take_over(self) -> None:
        """Tell the engine of jobs and leases from before."""
        now = self._clock()
        for known in self._state.jobs("queued"):
            if known.wants_cancel:
                self._cancel(known, now)
                continue
            leases = self._state.leases(known.job.id, living=False)
            number = max((one.lease.number for one in leases), default=0)
            try:
                self._hand_in(known, number, now)
            except ConfigError as error:
                self._outcomes.end_job(known.job.id, "failed", None, str(error), now)
        leases = [one for one in self._state.leases() if not one.ending]
        stays = {known.job.id for known in self._state.jobs("queued") if not known.job.restartable}
        for one in sorted(leases, key=lambda one: one.lease.job_id not in stays):  # where there is less than before
            try:
                self._engine.handle(Adopted(one.lease), now)
            except ConfigError as error:
                self._state.change_lease(one.lease, ending=str(error))

    def _look_at_nodes(self, now: float) -> None:
        found = self._backend.nodes()
        if (found is None) != self._is_silent:
            self._is_silent = found is None
            self._tell(f"{_silent(self._backend)}: jobs go on" if found is None else "the cluster answers again")
        if found is None or not any(node.is_up for node in found):
            return  # it does not answer, or not yet: nothing is decided on that
        here = {node.server.name: node for node in found}
        for name, was_up in list(self._up.items()):
            if was_up and (name not in here or not here[name].is_up):
                self._tell(f"server {name} is lost")
                self._do(self._engine.handle(ServerLost(name), now))
                self._up[name] = False
        for name, node in here.items():
            if node.is_up and not self._up.get(name, False):
                self._tell(f"server {name} is back")
                self._engine.handle(ServerBack(node.server), now)
                self._up[name] = True

    def _look_at_lease(self, known: KnownLease, there: Mapping[str, bool] | None, now: float) -> None:
        lease = known.lease
        if known.status == "planned":
            if known.ending:
                self._outcomes.lease_over(known, SAVED, known.ending, now)
            return
        marks = self._state.marks(lease)
        said = marks.read("exit")
        if said is None and there is not None and self._state.name(lease) not in there:
            with if_free(marks.job / "lock") as is_free:
                if is_free:
                    said = marks.read("exit")  # it may have come since
                    if said is None:
                        marks.write("void", {})
                        said = {"code": LOST, "word": "it is gone, and did not say how"}
        if said is not None:
            self._outcomes.lease_over(known, int(said["code"]), str(said.get("word", "")), now)
        else:
            self._look_at_progress(known, now)

    def _look_at_progress(self, known: KnownLease, now: float) -> None:
        lease = known.lease
        marks = self._state.marks(lease)
        ready, said = marks.read("ready"), marks.read("progress")
        if ready is None or said is None:
            if self._outcomes.is_current(lease):  # which begins where the last one was saved
                self._engine.handle(JobProgress(lease.job_id, float(steps_saved(marks.job))), now)
            return
        if known.first_at is None:
            self._state.change_lease(lease, first_at=said["time"] - (said["clock"] - said["began"]))
        if not self._outcomes.is_current(lease):
            return
        rate = self._rate(said)
        self._engine.handle(JobProgress(lease.job_id, ready["saved"] + said["batches"], rate), now)
        if rate is not None:
            self._keep_learned(lease.job_id)

    def _keep_learned(self, job_id: str) -> None:
        """Write down a matrix that was corrected, so that the next daemon knows it."""
        known, matrix = self._state.job(job_id), self._engine.standing(job_id).job.matrix
        if known.is_profiled and matrix.rates != known.job.matrix.rates:
            self._state.learn(job_id, matrix)

    def _rate(self, said: Mapping[str, Any]) -> float | None:
        """Iterations per second, if a lease has said enough for that."""
        if not self._measures or not said["first"]:
            return None
        batches, took_s = said["batches"] - said["first"][0], said["at"] - said["first"][1]
        return batches / took_s if batches >= KNOWN_AFTER and took_s >= _KNOWN_AFTER_S else None

    def _look_at_wishes(self, now: float) -> None:
        for known in self._state.jobs("new"):
            job = known.job
            if known.wants_cancel:
                self._cancel(known, now)
                continue
            try:
                self._hand_in(known, 0, now)
            except ConfigError as error:
                self._outcomes.end_job(job.id, "failed", None, str(error), now)
                continue
            self._state.change_job(job.id, status="queued")
            self._state.change_job(job.id, why=sentence(self._engine, job.id, known.is_profiled))
        for known in self._state.jobs("queued"):
            leases = self._state.leases(known.job.id)
            if known.wants_cancel and not (leases and all(one.ending == "cancelled" for one in leases)):
                self._cancel(known, now)

    def _hand_in(self, known: KnownJob, leases: int, now: float) -> None:
        job, largest = known.job, self._engine.largest
        if job.gpus > largest:
            raise ConfigError(f"job {job.id} asks for {job.gpus} GPUs, and the largest server has {largest}")
        asked = as_known(known, self._engine.cluster.servers)
        self._engine.handle(Submitted(asked, known.done, known.attained_s, leases), now)

    def _cancel(self, known: KnownJob, now: float) -> None:
        job_id = known.job.id
        with contextlib.suppress(ConfigError):  # it never came to the engine
            self._engine.handle(Cancelled(job_id), now)
        with self._state.decision():
            for one in self._state.leases(job_id):
                self._state.change_lease(one.lease, ending="cancelled")
            if not self._state.leases(job_id):
                self._outcomes.end_job(job_id, "cancelled", None, "", now)

    # ---- what is decided

    def _round(self, now: float) -> None:
        self._last_round = now
        if self._measures and (costs := self._costs()) is not None:
            same_s, work_s = costs
            self._engine.rules = replace(self._engine.rules, switch_cost_s=same_s, start_work_s=work_s)
        actions = self._engine.handle(RoundEnded(), now)
        with self._state.decision():
            self._do(actions)
            for known in self._state.jobs("queued"):
                if known.wants_cancel:
                    continue
                standing = self._engine.standing(known.job.id)
                why = sentence(self._engine, known.job.id, known.is_profiled)
                if (known.done, known.attained_s, known.why) != (standing.done, standing.attained_s, why):
                    self._state.change_job(known.job.id, done=standing.done, attained_s=standing.attained_s, why=why)

    def _do(self, actions: list[Action]) -> None:
        """Write down what the engine decided. `giving` has it done."""
        with self._state.decision():
            for action in actions:
                match action:
                    case Renew():
                        pass
                    case End(lease, why):
                        self._end_lease(lease, why)
                    case Change(lease, before):
                        is_same = lease.placement.demand == before.placement.demand
                        self._end_lease(before, "it moves to another server" if is_same else "it gets another share")
                        self._plan(lease)
                    case Start(lease):
                        self._plan(lease)

    def _plan(self, lease: Lease) -> None:
        assert len(lease.placement.shares) == 1, "jobs run on one server here"
        self._state.plan(lease)

    def _end_lease(self, lease: Lease, why: str) -> None:
        self._state.change_lease(lease, ending=why)
        self._state.note(lease.job_id, lease.number, f"is to end: {why}")

    def _costs(self) -> tuple[float, float] | None:
        """What it costs to save a job and to start it anew, as the last leases did; and of one whole core on top."""
        starts = [
            (one.lease.placement.demand.cpus * self._engine.rules.core, one.first_at - one.given_at)
            for one in self._state.latest_leases(_LATEST, "first_at", "given_at")
            if one.first_at and one.given_at
        ]
        ends = [
            one.ended_at - one.told_at
            for one in self._state.latest_leases(_LATEST, "first_at", "told_at", "ended_at")
            if one.ended_at and one.told_at
        ]
        if not starts:
            return None
        same_s, work_s = start_cost(starts)
        return same_s + (max(0.0, statistics.median(ends)) if ends else 0.0), work_s


def _silent(backend: Backend) -> str:
    return f"the cluster does not answer{f' ({backend.silence})' if backend.silence else ''}"
