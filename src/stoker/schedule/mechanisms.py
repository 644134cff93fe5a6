"""Who gets what: the mechanisms. Each puts jobs, in the queue's order, into a packing that may hold some already.

proportional   each job gets its GPUs' part of the server.
greedy         each job gets what it wants on the first server that has it; if none has, it is left out.
tune           all jobs get GPUs, in the order of their demands; who does not fit is brought to its floor; where even that
               does not fit, others on the server are. Then what is left is given to those who can use it, and servers on
               which not all have what they want are divided anew (`dividing`). Where some lack something, the same is tried
               with jobs spread such that on each server they have what they should (`aims`), and the better one counts.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stoker.schedule.aims import aims
from stoker.schedule.dividing import divide
from stoker.schedule.place import EPSILON, Asks, Grant, Packing, Values

Wanting = tuple[str, Asks]
"""A job by its id, and what it asks for."""
Mechanism = Callable[[Packing, Sequence[Wanting]], Packing]
"""Puts jobs into a packing. The one that is returned counts, and may be another."""


def proportional(packing: Packing, jobs: Sequence[Wanting]) -> Packing:
    """Give each job its GPUs' part of the servers."""
    for key, asks in largest_first(jobs):
        where = np.where(packing.gpus >= asks.gpus, packing.gpus, np.iinfo(np.int64).max)
        best = int(where.argmin())
        parts = ((best, asks.gpus),) if packing.gpus[best] >= asks.gpus else packing.spread(asks.gpus)
        cpus, memory = packing.cluster.proportional(parts)
        for number, gpus in parts:
            packing.make_room(number, gpus * cpus, gpus * memory)
        packing.put(Grant(key, asks, parts, cpus, memory))
    return packing


def greedy(packing: Packing, jobs: Sequence[Wanting]) -> Packing:
    """Give each job all that it wants on the first server that has it, or nothing."""
    refused: set[Asks] = set()
    left = int(packing.gpus.sum())
    for key, asks in jobs:
        if not left:
            break
        if asks in refused or asks.gpus > left:
            continue
        fits = packing.fits(asks.gpus, asks.cpus, asks.memory)
        first = int(fits.argmax())
        if fits[first]:
            cpus, memory = asks.cpus[first] / asks.gpus, asks.memory[first] / asks.gpus
            packing.put(Grant(key, asks, ((first, asks.gpus),), float(cpus), float(memory)))
        elif asks.gpus > packing.cluster.gpus.max() and (parts := _spread_whole(packing, asks)):
            packing.put(Grant(key, asks, parts, *packing.cluster.proportional(parts)))
        else:
            refused.add(asks)  # what is free only shrinks: the next of its kind does not fit either
            continue
        left -= asks.gpus
    return packing


def tune(packing: Packing, jobs: Sequence[Wanting]) -> Packing:
    """Give every job GPUs, and beyond its floor what it wants while there is some."""
    is_empty = not packing.grants
    balanced = packing.copy()
    for key, asks in largest_first(jobs):
        place(packing, key, asks, asks.cpus, asks.memory)
    packing.top_up(key for key, _ in jobs)
    if not is_empty or not any(grant.lacks for grant in packing.grants.values()):
        return packing  # beside jobs that are to stay as they are, nothing is divided anew
    _balance(balanced, jobs)
    for one in (packing, balanced):
        for number in range(len(one.gpus)):
            divide(one, number)
    return balanced if throughput(balanced) > throughput(packing) else packing


def _balance(packing: Packing, jobs: Sequence[Wanting]) -> None:
    """Give all their floors, such that the aims of those on a server are about what it has."""
    cluster, targets = packing.cluster, aims(packing, jobs)
    share = np.array([cluster.cpus_per_gpu.mean(), cluster.memory_per_gpu.mean()])
    whole = np.array([cluster.cpus.mean(), cluster.memory.mean()])
    above = {
        key: (np.array(targets.get(key, (asks.demand.cpus, asks.demand.memory_gb))) - asks.gpus * share) / whole
        for key, asks in jobs
    }
    beyond = np.zeros((len(packing.gpus), 2))
    """What the aims of those on a server have above their GPUs' share, as a part of it."""
    for key, asks in sorted(jobs, key=lambda job: (-job[1].gpus, *_hungry_first(above[job[0]]))):
        roomy = packing.gpus >= asks.gpus
        if not roomy.any():
            place(packing, key, asks, asks.cpus, asks.memory)
            continue
        if above[key].max() > 0:
            best = int(np.where(roomy, (beyond + above[key]).max(axis=1), np.inf).argmin())
        else:
            best = int(np.where(roomy, beyond.max(axis=1), -np.inf).argmax())
        floor = float(asks.floor_cpus[best]), float(asks.floor_memory[best])
        packing.put(Grant(key, asks, ((best, asks.gpus),), *floor))
        beyond[best] += above[key]


def _hungry_first(above: Values) -> tuple[float, float]:
    """Those with most above their share, then those with most below it."""
    most = float(above.max())
    return (-most, 0.0) if most > 0 else (0.0, float(above.sum()))


def throughput(packing: Packing) -> float:
    """Of all jobs, each relative to the proportional share of the whole cluster."""
    total = packing.cluster.total
    share = total.cpus / total.gpus, total.memory_gb / total.gpus
    return sum(grant.rate / grant.asks.matrix.rate(*share) for grant in packing.grants.values())


def tune_as_published(packing: Packing, jobs: Sequence[Wanting]) -> Packing:
    """The same by the printed rule: the server with least free, and what was taken from others is not given back."""
    for key, asks in largest_first(jobs):
        place(packing, key, asks, asks.cpus, asks.memory, _least_free)
    return packing


def most_spare(packing: Packing) -> Values:
    """Cores above the proportional share of the free GPUs: those that nobody else has a right to."""
    spare: Values = packing.cpus - packing.gpus * packing.cluster.cpus_per_gpu
    return spare


def _least_free(packing: Packing) -> Values:
    cluster = packing.cluster
    least: Values = -(packing.gpus / cluster.gpus + packing.cpus / cluster.cpus + packing.memory / cluster.memory)
    return least


Score = Callable[[Packing], Values]
"""How good each server is for the next job."""


def place(packing: Packing, key: str, asks: Asks, cpus: Values, memory: Values, score: Score = most_spare) -> None:
    """Put one job where it gets so much, else where it gets its floor, else where others are brought to theirs."""
    floor_cpus, floor_memory = asks.floor_cpus * asks.gpus, asks.floor_memory * asks.gpus
    for wanted_cpus, wanted_memory in ((cpus, memory), (floor_cpus, floor_memory)):
        fits = packing.fits(asks.gpus, wanted_cpus, wanted_memory)
        if fits.any():
            best = int(np.where(fits, score(packing), -np.inf).argmax())
            given = float(wanted_cpus[best]) / asks.gpus, float(wanted_memory[best]) / asks.gpus
            packing.put(Grant(key, asks, ((best, asks.gpus),), *given))
            return
    roomy = packing.gpus >= asks.gpus
    if roomy.any():
        parts: tuple[tuple[int, int], ...] = ((int(np.where(roomy, score(packing), -np.inf).argmax()), asks.gpus),)
    else:
        parts = packing.spread(asks.gpus)
    floor = asks.matrix.trimmed(*packing.cluster.proportional(parts))
    for number, gpus in parts:
        packing.make_room(number, gpus * floor[0], gpus * floor[1])
    packing.put(Grant(key, asks, parts, *floor))


def largest_first(jobs: Iterable[Wanting]) -> list[Wanting]:
    """By GPUs, then by CPUs, then by memory."""
    return sorted(jobs, key=lambda job: (-job[1].gpus, -job[1].demand.cpus, -job[1].demand.memory_gb))


def _spread_whole(packing: Packing, asks: Asks) -> tuple[tuple[int, int], ...] | None:
    """A job over several servers, where each has the proportional share left; None if they have not."""
    parts = packing.spread(asks.gpus)
    cpus, memory = packing.cluster.proportional(parts)
    fit = all(
        packing.cpus[number] >= gpus * cpus - EPSILON and packing.memory[number] >= gpus * memory - EPSILON
        for number, gpus in parts
    )
    return parts if fit else None


MECHANISMS: dict[str, Mechanism] = {"proportional": proportional, "greedy": greedy, "tune": tune}
