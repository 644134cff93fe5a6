"""How the cores and the memory of one server are divided among the jobs on it, where not all get what they want.

All begin at their floors. Then that job gets more which gains most by it, for each part of the server that it takes, as
long as there is some. A server is divided anew only if its jobs gain by it together.
"""

from functools import lru_cache

from stoker.schedule.matrix import Matrix
from stoker.schedule.place import EPSILON, Grant, Packing

Way = tuple[float, float, float]
"""CPUs and memory for one GPU, and the rate relative to the proportional share."""


@lru_cache(maxsize=50_000)
def ways(
    matrix: Matrix, share: tuple[float, float], asked: tuple[float, float], most: tuple[float, float]
) -> tuple[Way, ...]:
    """All sensible ways to serve a job: none is slower than the share, and none is as good with less of either."""
    base, floor = matrix.rate(*share), matrix.trimmed(*share)
    axes = [
        sorted({floor[side], asked[side], *(value for value in axis if value <= most[side])})
        for side, axis in enumerate((matrix.cpus, matrix.memory_gb))
    ]
    kept: list[Way] = []
    for cpus in axes[0]:
        for memory in axes[1]:
            worth = matrix.rate(cpus, memory) / base
            if worth >= 1 and not any(other[1] <= memory and other[2] >= worth for other in kept):
                kept.append((cpus, memory, worth))
    return tuple(kept)


def divide(packing: Packing, number: int) -> None:
    """Divide one server, if not all on it have what they want."""
    cluster = packing.cluster
    grants = [one for one in packing.on(number) if len(one.parts) == 1 and not (one.is_fixed or one.asks.is_fixed)]
    if not any(grant.lacks for grant in grants):
        return
    share = float(cluster.cpus_per_gpu[number]), float(cluster.memory_per_gpu[number])
    whole = float(cluster.cpus[number]), float(cluster.memory[number])
    choices = [_ways_of(grant, number, share, whole) for grant in grants]
    free_cpus = float(packing.cpus[number]) + sum(one.cpus * one.asks.gpus for one in grants)
    free_memory = float(packing.memory[number]) + sum(one.memory * one.asks.gpus for one in grants)
    chosen: list[Way] = []
    for grant in grants:
        floor = float(grant.asks.floor_cpus[number]), float(grant.asks.floor_memory[number])
        chosen.append((*floor, 1.0))
        free_cpus -= floor[0] * grant.asks.gpus
        free_memory -= floor[1] * grant.asks.gpus
    while True:
        best, best_gain = (-1, (0.0, 0.0, 0.0)), 0.0
        for place, (grant, options) in enumerate(zip(grants, choices, strict=True)):
            gpus, now = grant.asks.gpus, chosen[place]
            for way in options:
                more_cpus, more_memory = gpus * (way[0] - now[0]), gpus * (way[1] - now[1])
                if way[2] > now[2] and more_cpus <= free_cpus + EPSILON and more_memory <= free_memory + EPSILON:
                    taken = max(more_cpus, 0.0) / whole[0] + max(more_memory, 0.0) / whole[1]
                    gain = (way[2] - now[2]) / max(taken, EPSILON)
                    if gain > best_gain:
                        best, best_gain = (place, way), gain
        place, way = best
        if place < 0:
            break
        gpus = grants[place].asks.gpus
        free_cpus -= gpus * (way[0] - chosen[place][0])
        free_memory -= gpus * (way[1] - chosen[place][1])
        chosen[place] = way
    before = sum(grant.rate / grant.asks.matrix.rate(*share) for grant in grants)
    if sum(way[2] for way in chosen) > before * (1 + 1e-9):
        for grant, way in zip(grants, chosen, strict=True):
            packing.resize(grant, way[0], way[1])


def _ways_of(grant: Grant, number: int, share: tuple[float, float], whole: tuple[float, float]) -> tuple[Way, ...]:
    asks = grant.asks
    asked = float(asks.cpus[number]) / asks.gpus, float(asks.memory[number]) / asks.gpus
    return ways(asks.matrix, share, asked, (whole[0] / asks.gpus, whole[1] / asks.gpus))
