"""Jobs that were measured run already: which of them goes on, and when the others are started again. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stoker.decide.stagger import OBJECTIVES, StaggerOutcome
from stoker.run.together.catalogue import Beside, Solo
from stoker.run.together.jobs import TogetherJob
from stoker.run.together.planning import TogetherPlan, alone_s, make_plan


class GoingOn(NamedTuple):
    """A plan, and the jobs that go on from where they are.

    They are weighed as if each start-up took longer than it did, by as much as is spared elsewhere: a job that goes on pays
    nothing for its start-up, and one that is started again may pay more than it did before.
    """

    plan: TogetherPlan
    who: tuple[int, ...]
    late: StaggerOutcome

    @property
    def left_s(self) -> float:
        """Until all have ended."""
        return self.late.makespan_s - self._elapsed_s

    @property
    def work_s(self) -> float:
        """What the jobs will take from now on."""
        return sum(self.late.times_s) - sum(self._elapsed_s - self.late.starts_s[number] for number in self.who)

    @property
    def _elapsed_s(self) -> float:
        return self.plan.elapsed_s or 0.0


def who_goes_on(
    jobs: Sequence[TogetherJob],
    solo: Sequence[Solo],
    beside: Sequence[Sequence[Beside]],
    passes: Mapping[int, float],
    leader: int,
    cache_bytes: int,
    *,
    objective: str,
    ready: float,
) -> GoingOn:
    """One of the jobs that run, or the leader and those that are to begin soonest after it, or all.

    The others are started at their best moments, again or for the first time.
    `passes` is how far each of those is that run. The leader is the one that reads first by now.
    """
    found, ahead = {}, max(passes.values())
    for number, done in passes.items():
        # What another one has read before it stays there for it.
        cached = ready if done >= ahead else max(ready, min(ahead, 1.0))
        elapsed_s = alone_s(solo[number], done, cached)
        plan = make_plan(
            jobs, solo, beside, cache_bytes, objective=objective, ready=cached, runs=number, elapsed_s=elapsed_s
        )
        found[number] = GoingOn(plan, (number,), plan.if_late([number]))
    now_s = alone_s(solo[leader], passes[leader], ready)
    plans = list(found.values())
    # What the others have read was in the cache.
    begun_s = {one: max(0.0, now_s - alone_s(solo[one], done, 1.0)) for one, done in passes.items()} | {leader: 0.0}
    in_turn = sorted(passes, key=lambda number: (number != leader, found[leader].plan.outcome.starts_s[number]))
    for count in range(2, len(passes) + 1):
        who = in_turn[:count]
        plan = make_plan(
            jobs,
            solo,
            beside,
            cache_bytes,
            objective=objective,
            ready=ready,
            runs=leader,
            elapsed_s=now_s,
            begun_s={number: begun_s[number] for number in who},
        )
        plans.append(GoingOn(plan, tuple(sorted(who)), plan.if_late(who)))
    allowed_s = (1 + max(1e-9, OBJECTIVES[objective])) * min(one.left_s for one in plans)
    return min((one for one in plans if one.left_s <= allowed_s), key=lambda one: (one.work_s, one.left_s))
