"""The mechanism opt: what each job gets is the solution of an integer program. The only home of SciPy.

First all servers count as one: of the points of its matrix each job gets one that is not slower than its proportional
share, such that the throughput of all, each job's relative to that share, is the most. Then a linear program divides the
jobs among the servers. It has no objective, but a solution at a vertex (dual simplex), which splits at most three jobs for
each server: those, and none else, are placed as tune would.

    maximise  sum W_j[c,m] y_jcm        sum c y <= C,  sum m y <= M,  sum_cm y_jcm = 1,  W_j[c,m] >= W_j[proportional]
    find      x >= 0 with, for each server i, sum_j g_j x_ij <= G_i, sum_j c_j x_ij <= C_i, sum_j m_j x_ij <= M_i, and
              for each job j, sum_i x_ij >= 1

Jobs with the same matrix and the same GPUs are interchangeable, so that they are counted rather than named: y and x are
numbers of jobs. Placed first are jobs larger than a server and those that cannot be stopped, with their floor, and those
that have a server for themselves, with all they can use of it: what they leave is nobody's. Where a program has no solution
(servers of different kinds may have their cores where the GPUs are not), or tune does better, tune's placement is taken.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse

from stoker.schedule.dividing import divide, ways
from stoker.schedule.mechanisms import Wanting, largest_first, place, throughput, tune
from stoker.schedule.place import EPSILON, Asks, Grant, Packing, Values

_MOST_NODES = 2000
"""Of the search for whole numbers; then the best found so far counts."""


@dataclass(frozen=True, slots=True)
class Point:
    """One way to serve jobs of a kind: CPUs and memory for one GPU, and the rate relative to the proportional share."""

    asks: Asks
    cpus: float
    memory: float
    worth: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """How many jobs are served in which way, and the throughput of all of them: no placement has more."""

    counts: dict[Point, int]
    throughput: float


def opt(packing: Packing, jobs: Sequence[Wanting]) -> Packing:
    """Give the jobs what the programs say, or what tune gives them if that is more."""
    tuned = tune(packing.copy(), jobs)
    single = place_first(packing, jobs)
    allocation = allocate(packing, single)
    numbers = None if allocation is None else assign(packing, list(allocation.counts.items()))
    if allocation is None or numbers is None:
        return tuned
    _realise(packing, single, allocation, numbers)
    return packing if _keeps_promises(packing) and throughput(packing) >= throughput(tuned) else tuned


def place_first(packing: Packing, jobs: Sequence[Wanting]) -> list[Wanting]:
    """Place the jobs that the programs have no choice about; returns the others."""
    largest = int(packing.cluster.gpus.max())
    others = []
    for key, asks in largest_first(jobs):
        if asks.gpus >= largest or asks.is_fixed:
            place(packing, key, asks, asks.cpus, asks.memory)
        else:
            others.append((key, asks))
    return others


def _keeps_promises(packing: Packing) -> bool:
    """Whether each job has the proportional share of its own servers, which may be better ones than most."""
    cluster = packing.cluster
    return all(grant.rate >= cluster.proportional_rate(grant.asks.matrix, grant.parts) for grant in packing.grants.values())


def allocate(packing: Packing, jobs: Sequence[Wanting]) -> Allocation | None:
    """The first program: as if all that is free were one server. None if it has no solution."""
    kinds: dict[Asks, int] = defaultdict(int)
    for _, asks in jobs:
        kinds[asks] += 1
    points = [(number, point) for number, asks in enumerate(kinds) for point in _points(asks, packing)]
    if not points:
        return None if jobs else Allocation({}, 0.0)
    rows = np.array([number for number, _ in points])
    most = np.array(list(kinds.values()), np.float64)
    gpus = np.array([point.asks.gpus for _, point in points], np.float64)
    needs = np.array([[point.cpus for _, point in points], [point.memory for _, point in points]]) * gpus
    one_each = scipy.sparse.csr_array((np.ones(len(points)), (rows, np.arange(len(points)))), (len(most), len(points)))
    has_gpus = packing.gpus > 0  # what is left beside a job that has all GPUs of a server is nobody's
    free = np.array([packing.cpus[has_gpus].sum(), packing.memory[has_gpus].sum()])
    found = scipy.optimize.milp(
        -np.array([point.worth for _, point in points]),
        integrality=np.ones(len(points)),
        bounds=scipy.optimize.Bounds(0, most[rows]),
        constraints=[
            scipy.optimize.LinearConstraint(needs, -np.inf, free + EPSILON),
            scipy.optimize.LinearConstraint(one_each, most, most),
        ],
        options={"node_limit": _MOST_NODES},
    )
    if found.x is None:
        return None
    counts = {point: round(count) for (_, point), count in zip(points, found.x, strict=True) if round(count)}
    return Allocation(counts, -float(found.fun))


def assign(packing: Packing, counts: Sequence[tuple[Point, int]]) -> Values | None:
    """The second program: how many jobs of each kind each server gets, at a vertex. None if it has no solution."""
    servers, kinds = len(packing.gpus), len(counts)
    if not kinds:
        return np.zeros((servers, 0))
    gpus = np.array([point.asks.gpus for point, _ in counts], np.float64)
    needs = [gpus, gpus * [point.cpus for point, _ in counts], gpus * [point.memory for point, _ in counts]]
    limits = scipy.sparse.vstack([scipy.sparse.kron(scipy.sparse.eye_array(servers), one[None, :]) for one in needs])
    everyone = scipy.sparse.kron(np.ones((1, servers)), scipy.sparse.eye_array(kinds))
    fits = np.array([[point.asks.gpus <= size for point, _ in counts] for size in packing.cluster.gpus])
    most = np.where(fits, [count for _, count in counts], 0).astype(np.float64)
    found = scipy.optimize.linprog(
        np.zeros(servers * kinds),
        A_ub=scipy.sparse.vstack([limits, -everyone], format="csr"),
        b_ub=np.concatenate(
            [packing.gpus, packing.cpus + EPSILON, packing.memory + EPSILON, [-float(count) for _, count in counts]]
        ),
        bounds=np.column_stack([np.zeros(servers * kinds), most.ravel()]),
        method="highs-ds",
    )
    return None if found.x is None else np.asarray(found.x, np.float64).reshape(servers, kinds)


def _realise(packing: Packing, jobs: Sequence[Wanting], allocation: Allocation, numbers: Values) -> None:
    """Place the whole jobs of each server, then those that were split."""
    waiting: dict[Asks, list[str]] = defaultdict(list)
    for key, asks in reversed(jobs):
        waiting[asks].append(key)
    split: list[tuple[Point, str]] = []
    for kind, (point, count) in enumerate(allocation.counts.items()):
        keys = [waiting[point.asks].pop() for _ in range(count)]
        for number, whole in enumerate(np.floor(numbers[:, kind] + EPSILON).astype(int).tolist()):
            for _ in range(min(whole, len(keys))):
                parts = ((number, point.asks.gpus),)
                packing.put(Grant(keys.pop(), point.asks, parts, point.cpus, point.memory))
        split += [(point, key) for key in keys]
    everywhere = np.ones(len(packing.gpus))
    for point, key in sorted(split, key=lambda one: (-one[0].asks.gpus, -one[0].cpus)):
        gpus = point.asks.gpus
        cpus, memory = everywhere * point.cpus * gpus, everywhere * point.memory * gpus
        place(packing, key, point.asks, cpus, memory)
    packing.top_up(key for key, _ in jobs)
    for number in range(len(packing.gpus)):
        divide(packing, number)


def _points(asks: Asks, packing: Packing) -> list[Point]:
    """The ways to serve a job on the largest server, if it had the proportional share of all."""
    gpus, cluster = asks.gpus, packing.cluster
    asked = asks.demand.cpus / gpus, asks.demand.memory_gb / gpus
    most = float(cluster.cpus.max()) / gpus, float(cluster.memory.max()) / gpus
    return [Point(asks, *way) for way in ways(asks.matrix, _share(packing), asked, most)]


def _share(packing: Packing) -> tuple[float, float]:
    total = packing.cluster.total
    return total.cpus / total.gpus, total.memory_gb / total.gpus
