"""Do jobs end sooner where cores and memory go to those who need them, and does each decision take little enough?

    python benchmarks/schedule.py --row static|poisson|split|policies|opt|round|dynamic [--seeds 0,1,2] [--policy P,...]

Each row answers with JSON lines. All jobs are simulated; profiles and traces are those of `../shared/data` (--data).

static     100 jobs at once on 32 GPUs: the makespan of each mechanism, and opt's objective against tune's in every round.
poisson    9 jobs per hour on 128 GPUs, FIFO, jobs 4000 to 5000: against an exact queue with 128 servers, in which jobs
           begin when one is free, with the proportional share or with all that they want.
split      as many image as speech models, at 7 jobs per hour: greedy, proportional and tune; DRF and Tetris, too. The same
           with 20 % image, 70 % language and 10 % speech models, at 9 per hour.
policies   8,000 jobs of the Philly cluster on 512 GPUs, each policy with each mechanism. With --speed they come faster.
loads      1,200 drawn jobs with 1, 2, 4 or 8 GPUs on 128 GPUs, more and more of them in an hour: who should be first.
opt        tune's throughput against opt's upper bound on 200 random instances of 16 servers.
round      one decision for 512 GPUs with 1,000 jobs in the queue.
dynamic    10,000 jobs at 9 per hour: how long the simulation takes.
"""

import argparse
import heapq
import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.schedule.arrivals import draw, models_in_turn
from stoker.schedule.engine import Engine
from stoker.schedule.events import RoundEnded, Submitted
from stoker.schedule.job import Job, Server
from stoker.schedule.mechanisms import Wanting, throughput, tune, tune_as_published
from stoker.schedule.opt import allocate, opt, place_first
from stoker.schedule.place import Cluster, Packing
from stoker.schedule.profiles import ModelProfile, read_profiles
from stoker.schedule.queue import POLICIES
from stoker.schedule.rules import Rules
from stoker.schedule.simulate import Simulation
from stoker.schedule.summary import summarise
from stoker.schedule.trace import TraceBounds, from_start, read_trace

SPLIT = (20.0, 70.0, 10.0)
MECHANISMS = ("proportional", "greedy", "tune", "opt")
Row = Iterator[dict[str, Any]]


def cluster_of(servers: int) -> list[Server]:
    """The thesis's servers."""
    return [Server(f"server{number}", 8, 24, 500.0) for number in range(servers)]


class Bench:
    """The data, and one method for each row."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._data: Path = options.data
        self._profiles = read_profiles(self._data / "synergy_profiles.json", cluster_of(1))
        self._seeds = [int(seed) for seed in options.seeds.split(",")]
        self._policies: list[str] = options.policy.split(",") if options.policy else ["fifo", *list(POLICIES)[1:]]
        self._speed: float = options.speed
        self._mechanisms: list[str] = options.mechanism.split(",") if options.mechanism else list(MECHANISMS)

    def static(self) -> Row:
        jobs = read_trace(self._data / "synergy_static_100job_60_30_10.csv", self._profiles, SPLIT)
        for mechanism in self._mechanisms:
            yield run(jobs, 4, "fifo", mechanism)
        yield run(jobs, 4, "fifo", "tune", as_published=True)
        yield self._objectives(jobs)

    def _objectives(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """opt's throughput over tune's for the jobs of every round under opt."""
        servers = cluster_of(4)
        cluster = Cluster(servers)
        ratios = []
        by_id = {job.id: job for job in jobs}

        class Watched(Simulation):
            def _note(self, now: float, arrived: int) -> None:
                super()._note(now, arrived)
                wanting = [(job.id, cluster.asks(job)) for job in jobs if job.id in self._running]  # in the queue's order
                tuned = throughput(tune(Packing(cluster), wanting))
                share = 3.0, 62.5
                had = sum(lease.rate / by_id[key].matrix.rate(*share) for key, (lease, _) in self._running.items())
                ratios.append(had / tuned)

        Watched(jobs, servers, Rules("fifo", "opt")).run()
        return {"opt over tune": {"least": min(ratios), "mean": statistics.mean(ratios)}, "rounds": len(ratios)}

    def poisson(self) -> Row:
        for seed in self._seeds:
            jobs = draw(9, 5000, SPLIT, self._profiles, seed=seed, gpus=1)
            exact = {"proportional": exact_queue(jobs, full=False), "tune": exact_queue(jobs, full=True)}
            for mechanism, queue_h in exact.items():
                if mechanism not in self._mechanisms:
                    continue
                found = run(jobs, 16, "fifo", mechanism, window=(4000, 5000))
                yield found | {"seed": seed, "exact_queue_h": queue_h, "ratio": found["jct_h"]["mean"] / queue_h}

    def split(self) -> Row:
        pairs = [("fifo", "proportional"), ("fifo", "greedy"), ("fifo", "tune"), ("drf", "greedy"), ("drf", "tune")]
        pairs += [("tetris", "greedy"), ("tetris", "tune")]
        for parts, per_hour in (((50.0, 0.0, 50.0), 7.0), (SPLIT, 9.0)):
            jobs = draw(per_hour, 5000, parts, self._profiles, seed=self._seeds[0], gpus=1)
            for policy, mechanism in pairs:
                if policy in self._policies and mechanism in self._mechanisms:
                    yield run(jobs, 16, policy, mechanism, window=(4000, 5000)) | {"split": parts, "per_hour": per_hour}

    def policies(self) -> Row:
        kept = TraceBounds((1, 16), (10**1.5, 10**4))
        jobs = read_trace(self._data / "philly_jobs_digest.csv", self._profiles, SPLIT, kept)
        jobs = [replace(job, arrival_s=job.arrival_s / self._speed) for job in from_start(jobs[2000:10000])]
        for policy in self._policies:
            for mechanism in self._mechanisms:
                yield run(jobs, 64, policy, mechanism, window=(3000, 4000)) | {"speed": self._speed}

    def loads(self) -> Row:
        for per_hour in (5.0, 7.0, 9.0):
            for seed in self._seeds:
                jobs = draw(per_hour, 1200, SPLIT, self._profiles, seed=seed, gpus="mixed")
                for policy in ("fifo", "las", "srtf", "srsf"):
                    if policy in self._policies:
                        for mechanism in self._mechanisms:
                            more = {"per_hour": per_hour, "seed": seed}
                            yield run(jobs, 16, policy, mechanism, window=(300, 900)) | more

    def opt(self) -> Row:
        for sizes in ((1,), (1, 2, 4, 8)):
            yield {"gpus": sizes} | self._against_opt(sizes)

    def _against_opt(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        ratios, reached, published = [], [], []
        for seed in range(200):
            cluster, wanting = instance(16, random.Random(seed), list(self._profiles.values()), sizes)
            first = Packing(cluster)
            others = place_first(first, wanting)
            allocation = allocate(first, others)
            assert allocation is not None
            bound = allocation.throughput + throughput(first)
            ratios.append(throughput(tune(Packing(cluster), wanting)) / bound)
            reached.append(throughput(opt(Packing(cluster), wanting)) / bound)
            published.append(throughput(tune_as_published(Packing(cluster), wanting)) / bound)
        return {
            "tune over opt placed": {
                "least": min(one / other for one, other in zip(ratios, reached, strict=True)),
                "mean": statistics.mean(one / other for one, other in zip(ratios, reached, strict=True)),
            },
            "tune as published over the bound": {"least": min(published), "mean": statistics.mean(published)},
            "tune over the bound": {"least": min(ratios), "mean": statistics.mean(ratios)},
            "opt placed over the bound": {"least": min(reached), "mean": statistics.mean(reached)},
            "instances": len(ratios),
        }

    def round(self) -> Row:
        for mechanism in self._mechanisms:
            for apart in (False, True):
                taken = []
                for seed in range(5):
                    engine = Engine(cluster_of(64), Rules("srtf", mechanism))
                    for job in queued(1000, seed, self._profiles, apart=apart):
                        engine.handle(Submitted(job), 0.0)
                    began = time.perf_counter()
                    engine.handle(RoundEnded(), 0.0)
                    taken.append(time.perf_counter() - began)
                kind = "a matrix for each job" if apart else "10 models"
                yield {"mechanism": mechanism, "of": kind, "median_s": statistics.median(taken), "max_s": max(taken)}

    def dynamic(self) -> Row:
        for mechanism in self._mechanisms:
            if mechanism in ("proportional", "tune"):
                jobs = draw(9, 10_000, SPLIT, self._profiles, seed=0, gpus=1)
                yield run(jobs, 16, "fifo", mechanism, window=(4000, 5000)) | {"jobs": len(jobs)}


def run(jobs: Sequence[Job], servers: int, policy: str, mechanism: str, **more: Any) -> dict[str, Any]:
    window = more.pop("window", None)
    began = time.perf_counter()
    document = summarise(Simulation(jobs, cluster_of(servers), Rules(policy, mechanism, **more)).run(), window)
    keys = ("makespan_h", "jct_h", "decision_s", "utilisation", "fragmentation", "switches", "rounds")
    found = {key: document[key] for key in keys}
    return {"policy": policy, "mechanism": mechanism, **more, **found, "took_s": time.perf_counter() - began}


def exact_queue(jobs: Sequence[Job], *, full: bool) -> float:
    """The mean hours of jobs 4000 to 5000 in a queue of 128 servers without rounds, at proportional or full speed."""
    free, times = [0.0] * 128, []
    for job in jobs:
        rate = job.matrix.rate(*(job.matrix.wanted if full else (3.0, 62.5)))
        end_s = max(job.arrival_s, heapq.heappop(free)) + job.iterations / rate
        heapq.heappush(free, end_s)
        times.append((end_s - job.arrival_s) / 3600)
    return statistics.mean(times[4000:5000])


def instance(
    servers: int, chance: random.Random, models: Sequence[ModelProfile], sizes: tuple[int, ...]
) -> tuple[Cluster, list[Wanting]]:
    """A full cluster of jobs of random models and sizes."""
    cluster = Cluster(cluster_of(servers))
    wanting: list[Wanting] = []
    left = cluster.total.gpus
    while left:
        gpus = min(chance.choices(sizes, (0.7, 0.1, 0.15, 0.05)[: len(sizes)])[0], left)
        job = Job(str(len(wanting)), gpus, 1, chance.choice(models).matrix)
        wanting.append((job.id, cluster.asks(job)))
        left -= gpus
    return cluster, wanting


def queued(count: int, seed: int, profiles: dict[str, ModelProfile], *, apart: bool) -> Iterator[Job]:
    """Jobs that wait; `apart` gives each a matrix of its own."""
    chance, models = random.Random(seed), models_in_turn(SPLIT, profiles)
    for number in range(count):
        model = next(models)
        matrix = model.matrix
        if apart:
            matrix = matrix.corrected(
                matrix.cpus[-1], matrix.memory_gb[-1], matrix.rates[-1][-1] * chance.uniform(1.0, 1.1)
            )
        gpus = chance.choices((1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05))[0]
        yield Job(str(number), gpus, chance.randrange(1000, 100_000), matrix, model=model.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = ("static", "poisson", "split", "policies", "loads", "opt", "round", "dynamic")
    parser.add_argument("--row", choices=rows, action="append", help="which (default: all)")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--policy", help="only these, for the rows policies and split")
    parser.add_argument("--mechanism", help="only these, where a row has several")
    parser.add_argument("--speed", type=float, default=1.0, help="jobs of the row policies come so much faster")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    options = parser.parse_args()
    bench = Bench(options)
    for row in options.row or rows:
        for answer in getattr(bench, row)():
            print(json.dumps({"row": row, **answer, "load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
