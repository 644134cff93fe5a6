"""Has the cluster do what the state says: leases that are planned are started, those that are to end are told so."""

import sys
import time
from collections.abc import Callable, Collection, Mapping

from stoker.schedule.backend import Backend, LeaseOrder
from stoker.schedule.state import KnownLease, State

_AGAIN_S = 5.0
"""What had no effect is said again after this."""


class Giving:
    """One cluster's leases."""

    def __init__(self, state: State, backend: Backend, core: float, tell: Callable[[str], None]) -> None:
        self._state, self._backend, self._core, self._tell = state, backend, core, tell
        self._told: dict[str, float] = {}
        """When each lease was last told to end."""
        self._refusals: dict[str, str] = {}
        self._left: dict[str, float] = {}
        """When what the cluster still has of each ended lease was first seen."""

    def act(self, there: Mapping[str, bool], now: float) -> None:
        """Tell and start whom there is to tell and to start. A job's next lease waits for the end of the one before."""
        living = self._state.leases()
        for known in living:
            if known.ending and known.status == "given":
                self._end(known, there, now)
        busy = {known.lease.job_id for known in living if known.status == "given"}
        for known in living:
            if known.status == "planned" and not known.ending and known.lease.job_id not in busy:
                self._start(known)
        names = {self._state.name(known.lease) for known in living}
        self._told = {name: at for name, at in self._told.items() if name in names}
        self._clear(names, there, now)

    def _clear(self, living: Collection[str], there: Mapping[str, bool], now: float) -> None:
        """Cancel what the cluster still has of leases that have ended. A slurmctld that was killed may hold them to run."""
        left = [name for name in there if self._state.is_own(name) and name not in living]
        self._left = {name: self._left.get(name, now) for name in left}
        for name, since in self._left.items():
            if now - since >= _AGAIN_S:
                self._backend.cancel(name)
                self._left[name] = now

    def _start(self, known: KnownLease) -> None:
        lease, state = known.lease, self._state
        marks = state.marks(lease)
        marks.make()
        (share,) = lease.placement.shares
        words = [
            sys.executable,
            "-m",
            "stoker.schedule.lease",
            str(marks.job),
            str(lease.number),
            f"{share.cpus * self._core:.4f}",
        ]
        with state.decision():
            state.change_lease(lease, status="given", given_at=time.time())
            gpus = f"{share.gpus} GPU{'' if share.gpus == 1 else 's'}"
            given = f"given: {gpus}, {share.cpus:.3g} CPUs, {share.memory_gb:.3g} GB of {share.server}"
            state.note(lease.job_id, lease.number, given)
        said = self._backend.submit(LeaseOrder(state.name(lease), share, words, marks.job, marks.job / "output"))
        if said:
            with state.decision():
                state.change_lease(lease, given_at=None)
                state.change_job(lease.job_id, why=f"The cluster did not take it, and is asked again in each round: {said}")
                if self._refusals.get(lease.job_id) != said:
                    self._tell(f"job {lease.job_id} could not be handed to the cluster, and is tried again: {said}")
                    state.note(lease.job_id, lease.number, f"the cluster said: {said}")
            self._refusals[lease.job_id] = said
        else:
            self._refusals.pop(lease.job_id, None)

    def _end(self, known: KnownLease, there: Mapping[str, bool], now: float) -> None:
        lease = known.lease
        name, marks = self._state.name(lease), self._state.marks(lease)
        if name not in there or now - self._told.get(name, float("-inf")) < _AGAIN_S:
            return
        if not marks.has("void"):
            marks.write("void", {})
        if known.ending == "cancelled" or not there[name]:
            self._backend.cancel(name)
        elif marks.has("ready"):
            self._backend.stop(name)
        else:
            return  # it is just starting, and sees `void`
        self._told[name] = now
        if known.told_at is None:
            self._state.change_lease(lease, told_at=now)
