"""What each job should have, if all servers were one: where cores and memory do most, they go first. Pure.

Each job has a few sensible ways to be served (`dividing.ways`). At a price for cores and memory it takes the one that is
worth most less what it costs; the aims are those at the lowest price at which all of them together are there. So a large
job that gains little does not aim at cores with which several small ones would gain more.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stoker.schedule.dividing import ways
from stoker.schedule.place import EPSILON, Asks, Packing, Values

_CLOSE = 1.001
"""Two prices by this factor apart are the same."""
_LEAST = 1e-3

Aim = tuple[float, float]
"""CPUs and memory for all GPUs of a job."""


def aims(packing: Packing, jobs: Sequence[tuple[str, Asks]]) -> dict[str, Aim]:
    """What each job should have of what is free. Jobs that have a server for themselves are left out, with the server."""
    cluster = packing.cluster
    largest = int(cluster.gpus.max())
    free = np.array([packing.cpus.sum(), packing.memory.sum()])
    share = np.array([cluster.total.cpus, cluster.total.memory_gb]) / cluster.total.gpus
    kinds: dict[Asks, list[str]] = defaultdict(list)
    for key, asks in jobs:
        if asks.is_fixed or asks.gpus > largest:
            free -= asks.gpus * share
        elif asks.gpus == largest:
            free -= cluster.cpus.max(), cluster.memory.max()
        else:
            kinds[asks].append(key)
    return _Prices(packing, kinds).aims(free) if kinds else {}


class _Prices:
    """The ways of all kinds of jobs, as numbers: a row for each kind, a column for each way."""

    def __init__(self, packing: Packing, kinds: dict[Asks, list[str]]) -> None:
        cluster = packing.cluster
        total = cluster.total
        share = total.cpus / total.gpus, total.memory_gb / total.gpus
        whole = float(cluster.cpus.max()), float(cluster.memory.max())
        self._kinds = kinds
        self._counts = np.array([len(keys) for keys in kinds.values()], np.float64)
        found = []
        for asks in kinds:
            gpus = asks.gpus
            asked = asks.demand.cpus / gpus, asks.demand.memory_gb / gpus
            found.append(ways(asks.matrix, share, asked, (whole[0] / gpus, whole[1] / gpus)))
        shape = len(found), max(map(len, found))
        self._needs, self._worth = np.zeros((2, *shape)), np.full(shape, -np.inf)
        for row, (asks, options) in enumerate(zip(kinds, found, strict=True)):
            for column, (cpus, memory, worth) in enumerate(options):
                self._needs[:, row, column] = asks.gpus * cpus, asks.gpus * memory
                self._worth[row, column] = worth
        self._costs = self._needs[0] / total.cpus + self._needs[1] / total.memory_gb

    def aims(self, free: Values) -> dict[str, Aim]:
        """At the lowest price at which all is there; what is then left, some jobs have at the next lower one."""
        low, high = 0.0, 1.0
        while (self._needed(high) > free + EPSILON).any() and high < 1 / _LEAST**2:
            low, high = high, 2 * high
        while high > _LEAST and high > _CLOSE * low:
            middle = (low + high) / 2
            low, high = (low, middle) if (self._needed(middle) <= free + EPSILON).all() else (middle, high)
        few, many = self._chosen(high), self._chosen(low)
        left = free - self._needed(high)
        found = {}
        for row, keys in enumerate(self._kinds.values()):
            one, more = self._needs[:, row, few[row]], self._needs[:, row, many[row]]
            for key in keys:
                if few[row] != many[row] and (more - one <= left + EPSILON).all():
                    left = left - (more - one)
                    found[key] = float(more[0]), float(more[1])
                else:
                    found[key] = float(one[0]), float(one[1])
        return found

    def _chosen(self, price: float) -> Values:
        chosen: Values = (self._worth - price * self._costs).argmax(axis=1)
        return chosen

    def _needed(self, price: float) -> Values:
        rows = np.arange(len(self._counts))
        needed: Values = (self._needs[:, rows, self._chosen(price)] * self._counts).sum(axis=1)
        return needed
