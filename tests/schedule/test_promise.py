"""No job is below its proportional share, and no server gives more than it has: over random clusters, jobs and events."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.clusters import random_matrix

from stoker.schedule.engine import Engine
from stoker.schedule.events import Finished, RoundEnded, ServerBack, ServerLost, Submitted
from stoker.schedule.job import Job, Server
from stoker.schedule.mechanisms import throughput, tune
from stoker.schedule.opt import allocate, assign, opt
from stoker.schedule.place import Cluster, Packing
from stoker.schedule.queue import POLICIES
from stoker.schedule.rules import Rules


def random_servers(chance: random.Random) -> list[Server]:
    kinds = [
        (chance.randint(1, 8), chance.uniform(1, 64), chance.uniform(10, 600)) for _ in range(chance.choice((1, 1, 2, 3)))
    ]
    return [Server(f"s{number}", *chance.choice(kinds)) for number in range(chance.randint(1, 5))]


def random_jobs(chance: random.Random, most_gpus: int, count: int) -> list[Job]:
    matrices = [random_matrix(chance) for _ in range(4)]
    return [
        Job(f"j{number}", min(most_gpus, chance.choice((1, 1, 1, 2, 3, 4, 8, 12))), chance.randint(1, 3000),
            chance.choice(matrices), restartable=chance.random() > 0.1)
        for number in range(count)
    ]  # fmt: skip


def check(engine: Engine, jobs: dict[str, Job], machines: dict[str, Server], promises: bool) -> None:
    for name, server in machines.items():
        shares = [share for lease in engine.leases for share in lease.placement.shares if share.server == name]
        assert sum(share.gpus for share in shares) <= server.gpus
        assert sum(share.cpus for share in shares) <= server.cpus + 1e-5
        assert sum(share.memory_gb for share in shares) <= server.memory_gb + 1e-5
    for lease in engine.leases:
        job, shares = jobs[lease.job_id], lease.placement.shares
        assert sum(share.gpus for share in shares) == job.gpus
        assert len({share.server for share in shares}) == len(shares)
        used = [machines[share.server] for share in shares]
        floor = job.matrix.rate(min(one.cpus / one.gpus for one in used), min(one.memory_gb / one.gpus for one in used))
        assert lease.rate == pytest.approx(job.matrix.rate(*lease.placement.per_gpu))
        if promises:
            assert lease.rate >= floor * (1 - 1e-9)


@settings(max_examples=150)
@given(st.integers(0, 10**9), st.sampled_from(["proportional", "greedy", "tune", "opt"]), st.sampled_from(list(POLICIES)))
def test_capacity_gangs_and_the_proportional_share_hold_in_every_round(seed, mechanism, policy):
    chance = random.Random(seed)
    machines = {server.name: server for server in random_servers(chance)}
    cost_s, published = chance.choice((0.0, 0.0, 60.0)), chance.random() < 0.3
    engine = Engine(list(machines.values()), Rules(policy, mechanism, 300.0, cost_s, published))
    jobs = {job.id: job for job in random_jobs(chance, sum(one.gpus for one in machines.values()), chance.randint(1, 30))}
    coming, here, lost = list(jobs.values()), set(), {}
    for number in range(6):
        now = 300.0 * number
        for _ in range(min(len(coming), chance.randint(0, 8))):
            one = coming.pop()
            engine.handle(Submitted(one), now)
            here.add(one.id)
        for name in [name for name in sorted(here) if chance.random() < 0.1]:
            engine.handle(Finished(name), now)
            here.discard(name)
        if chance.random() < 0.15 and len(machines) > 1:
            name = chance.choice(sorted(machines))
            lost[name] = machines.pop(name)
            engine.handle(ServerLost(name), now)
        elif lost and chance.random() < 0.5:
            name, server = lost.popitem()
            machines[name] = server
            engine.handle(ServerBack(server), now)
        engine.handle(RoundEnded(), now)
        check(engine, jobs, machines, mechanism in ("tune", "opt"))
        if mechanism != "greedy":  # no GPU is idle while a job waits that would fit
            idle = sum(one.gpus for one in machines.values()) - sum(jobs[one.job_id].gpus for one in engine.leases)
            assert all(job.gpus > idle for job in engine.waiting)


def wanting_on(cluster: Cluster, chance: random.Random) -> list:
    left, wanting = cluster.total.gpus, []
    for job in random_jobs(chance, left, 60):
        if job.gpus <= left and job.restartable:
            wanting.append((job.id, cluster.asks(job)))
            left -= job.gpus
    return wanting


@settings(max_examples=60)
@given(st.integers(0, 10**9))
def test_opt_has_at_least_the_throughput_of_tune_and_at_most_its_bound(seed):
    chance = random.Random(seed)
    cluster = Cluster([Server(f"s{number}", 8, 24, 500.0) for number in range(chance.randint(1, 6))])
    wanting = wanting_on(cluster, chance)
    tuned, placed = throughput(tune(Packing(cluster), wanting)), throughput(opt(Packing(cluster), wanting))
    assert placed >= tuned * (1 - 1e-9)
    if all(asks.gpus <= 8 for _, asks in wanting):
        bound = allocate(Packing(cluster), wanting)
        assert bound is not None
        assert placed <= bound.throughput * (1 + 1e-3)  # the search for whole numbers ends within 1e-4 of the best


@settings(max_examples=40)
@given(st.integers(0, 10**9))
def test_the_second_program_splits_at_most_three_jobs_for_each_server(seed):
    chance = random.Random(seed)
    cluster = Cluster([Server(f"s{number}", 8, 24, 500.0) for number in range(chance.randint(1, 8))])
    wanting = [(key, asks) for key, asks in wanting_on(cluster, chance) if asks.gpus <= 8]
    allocation = allocate(Packing(cluster), wanting)
    assert allocation is not None
    counts = list(allocation.counts.items())
    numbers = assign(Packing(cluster), counts)
    assert numbers is not None
    whole = (numbers + 1e-6).astype(int).sum(axis=0)
    split = sum(max(0, count - placed) for (_, count), placed in zip(counts, whole.tolist(), strict=True))
    assert split <= 3 * len(cluster.servers)


def test_where_the_programs_have_no_solution_tune_places():
    chance = random.Random(5)
    matrix = random_matrix(chance)
    cluster = Cluster([Server("few", 8, 8, 500.0), Server("many", 8, 64, 500.0)])
    wanting = [(f"j{number}", cluster.asks(Job(f"j{number}", 1, 1, matrix))) for number in range(16)]
    packed = opt(Packing(cluster), wanting)
    packed.check()
    assert len(packed.grants) == 16
    assert throughput(packed) >= throughput(tune(Packing(cluster), wanting))
