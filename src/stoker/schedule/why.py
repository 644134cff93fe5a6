"""Why a job has what it has, or waits, and what would change it: one sentence."""

from stoker.schedule.engine import Engine, Standing
from stoker.schedule.job import Demand, Lease
from stoker.schedule.rules import Rules

_MORE = 1.01
"""A rate that is larger by this factor is worth a word."""


def sentence(engine: Engine, job_id: str, is_profiled: bool = True) -> str:
    """About a job that is in the queue or runs."""
    standing = engine.standing(job_id)
    if standing.lease is None:
        return _waits(engine, standing)
    if not is_profiled:
        has = f"It has {_words(standing.lease.placement.demand)} of {_where(standing.lease)}, its GPUs' share"
        return f"{has}: nothing is known of what more would do for it, which `stoker schedule profile` measures."
    return _runs(engine.rules, standing, standing.lease)


def _runs(rules: Rules, standing: Standing, lease: Lease) -> str:
    placement = lease.placement
    gain = lease.rate / lease.proportional_rate
    text = f"It has {_words(placement.demand)} of {_where(lease)}"
    if gain > _MORE:
        text += f", with which it is {gain:.2f} times as fast as with its GPUs' share"
    else:
        text += ", with which it is as fast as with its GPUs' share"
    if not standing.job.restartable:
        return f"{text}; it cannot be stopped and go on elsewhere, so it keeps that to its end."
    matrix, gpus = standing.job.matrix, standing.job.gpus
    best = matrix.rate(standing.wanted.cpus / gpus, standing.wanted.memory_gb / gpus)
    if best <= lease.rate * _MORE:
        return f"{text}; more would not help it."
    better = f"it would be {best / lease.rate:.2f} times as fast with {_words(standing.wanted)}"
    if rules.mechanism == "proportional":
        return f"{text}; {better}: the mechanism tune could give it that."
    return f"{text}; {better}, which it gets when others on a server end or need less, and the gain is worth a restart."


def _waits(engine: Engine, standing: Standing) -> str:
    total = engine.cluster.total.gpus
    used = sum(lease.placement.demand.gpus for lease in engine.leases)
    needs = f"It waits for {_gpus(standing.job.gpus)}"
    if standing.position < 0:
        return f"{needs}: it has come since the last round, and the next is at most {engine.rules.round_s:g} s away."
    if standing.job.gpus > total:
        return f"{needs}, and the servers that are up have {total} together: it can start when a server is back."
    if standing.job.gpus > total - used:
        return (
            f"{needs}: {used} of {total} are in use, {standing.gpus_ahead} of them by jobs that the policy "
            f"{engine.rules.policy} puts before it; it starts when enough of these have ended."
        )
    largest = max(server.gpus for server in engine.cluster.servers)
    if standing.job.gpus > largest:
        return f"{needs} on one server, and the largest has {largest}: it can start when a larger one is there."
    if standing.job.gpus == 1:
        return f"{needs}, which is free: it starts at the next round."
    return f"{needs}, which are free: it starts at the next round, or as soon as one server has them together."


def _words(demand: Demand) -> str:
    cpus = f"{demand.cpus:.3g} CPU{'' if abs(demand.cpus - 1) < 1e-9 else 's'}"
    return f"{_gpus(demand.gpus)}, {cpus} and {demand.memory_gb:.3g} GB"


def _where(lease: Lease) -> str:
    return " and ".join(share.server for share in lease.placement.shares)


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
