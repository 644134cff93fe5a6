"""Where jobs go: what each server has left, and the parts of it that jobs get.

A job's floor is the GPU-proportional share of the server that it is on, less what it would not use of that. The floors of
all jobs on a server fit it together, in every combination: each is at most its GPUs' part of the server. So a job that has
more can be brought back to its floor, and wherever a GPU is free room can be made for one more floor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stoker.errors import ConfigError
from stoker.schedule.job import Demand, Job, Placement, Server, ServerShare
from stoker.schedule.matrix import Matrix

EPSILON = 1e-6
"""CPUs or GB that rounding may add up to."""
_MOST_CLASSES = 20_000

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Asks:
    """What jobs of one matrix and one number of GPUs ask for on each server of a cluster."""

    matrix: Matrix
    gpus: int
    cpus: Values
    """Wanted, for all GPUs; infinite on servers that are too small."""
    memory: Values
    floor_cpus: Values
    """For one GPU."""
    floor_memory: Values
    demand: Demand
    """What is wanted on the largest server that fits."""
    is_fixed: bool
    """Whether such jobs cannot be stopped."""


class Cluster:
    """The servers, as columns of numbers."""

    def __init__(self, servers: Sequence[Server]) -> None:
        for server in servers:
            if server.gpus < 1 or server.cpus <= 0 or server.memory_gb <= 0:
                raise ConfigError(f"server {server.name} needs at least one GPU, some CPU and some memory")
        self.servers = tuple(servers)
        self.number = {server.name: number for number, server in enumerate(servers)}
        self.gpus = np.array([server.gpus for server in servers], np.int64)
        self.cpus = np.array([server.cpus for server in servers], np.float64)
        self.memory = np.array([server.memory_gb for server in servers], np.float64)
        self.cpus_per_gpu = self.cpus / self.gpus
        self.memory_per_gpu = self.memory / self.gpus
        self.total = Demand(int(self.gpus.sum()), float(self.cpus.sum()), float(self.memory.sum()))
        kinds: dict[tuple[int, float, float], int] = {}
        for number, server in enumerate(servers):
            kinds.setdefault((server.gpus, server.cpus, server.memory_gb), number)
        self._alike = list(kinds.values())
        """The first server of each kind."""
        place = {kind: row for row, kind in enumerate(kinds)}
        self._kind = np.array([place[server.gpus, server.cpus, server.memory_gb] for server in servers], np.int64)
        self._asks: dict[tuple[Matrix, int, bool], Asks] = {}

    def asks(self, job: Job) -> Asks:
        """What a job asks for here; the same for all jobs of its kind.

        One that cannot be stopped asks for its floor alone: what it had above that could not be taken back.
        """
        key = job.matrix, job.gpus, job.restartable
        found = self._asks.get(key)
        if found is None:
            if len(self._asks) >= _MOST_CLASSES:
                self._asks.clear()
            found = self._asks[key] = self._ask(*key)
        return found

    def proportional_rate(self, matrix: Matrix, parts: Iterable[tuple[int, int]]) -> float:
        """How fast a job would be with the proportional share of these servers."""
        return matrix.rate(*self.proportional(parts))

    def proportional(self, parts: Iterable[tuple[int, int]]) -> tuple[float, float]:
        """CPUs and memory that are there for one GPU on that server, of these, which has least."""
        numbers = [number for number, _ in parts]
        return float(self.cpus_per_gpu[numbers].min()), float(self.memory_per_gpu[numbers].min())

    def _ask(self, matrix: Matrix, gpus: int, restartable: bool) -> Asks:
        each = [self._wanted(matrix, gpus, restartable, number) for number in self._alike]
        cpus, memory, floor_cpus, floor_memory = np.array(each).reshape(-1, 4)[self._kind].T.copy()
        largest = Demand(gpus, 0.0, 0.0)
        for number, (wanted_cpus, wanted_memory, _, _) in zip(self._alike, each, strict=True):
            if self.servers[number].gpus >= gpus:
                largest = max(largest, Demand(gpus, wanted_cpus, wanted_memory), key=lambda one: (one.cpus, one.memory_gb))
        if not largest.cpus:
            part = gpus / self.total.gpus if self.servers else 0.0
            largest = Demand(gpus, part * self.total.cpus, part * self.total.memory_gb)
        return Asks(matrix, gpus, cpus, memory, floor_cpus, floor_memory, largest, not restartable)

    def _wanted(self, matrix: Matrix, gpus: int, restartable: bool, number: int) -> tuple[float, float, float, float]:
        server = self.servers[number]
        share = float(self.cpus_per_gpu[number]), float(self.memory_per_gpu[number])
        floor = matrix.trimmed(*share)
        if server.gpus < gpus:
            return np.inf, np.inf, *floor
        cpus, memory = (
            min(one * gpus, all_of_it)
            for one, all_of_it in zip(matrix.wanted, (server.cpus, server.memory_gb), strict=True)
        )
        says_too_little = matrix.rate(cpus / gpus, memory / gpus) < matrix.rate(*share)
        if says_too_little or not restartable:
            cpus, memory = floor[0] * gpus, floor[1] * gpus
        return cpus, memory, *floor


class Grant:
    """What one job gets: GPUs of one or more servers, and for each GPU the same CPUs and memory."""

    __slots__ = ("asks", "cpus", "is_fixed", "key", "memory", "parts")

    def __init__(
        self, key: str, asks: Asks, parts: tuple[tuple[int, int], ...], cpus: float, memory: float, is_fixed: bool = False
    ) -> None:
        self.key, self.asks, self.parts, self.cpus, self.memory = key, asks, parts, cpus, memory
        self.is_fixed = is_fixed
        """Whether the job cannot be stopped, so that nothing of this may change."""

    @property
    def rate(self) -> float:
        """Iterations per second."""
        return self.asks.matrix.rate(self.cpus, self.memory)

    @property
    def lacks(self) -> bool:
        """Whether the job would be faster with what it wants on its server."""
        number, gpus = self.parts[0]
        if len(self.parts) > 1 or self.asks.is_fixed:
            return False
        wanted = float(self.asks.cpus[number]) / gpus, float(self.asks.memory[number]) / gpus
        return self.asks.matrix.rate(*wanted) > self.rate

    def placement(self, cluster: Cluster) -> Placement:
        """The same, by the servers' names."""
        return Placement(
            tuple(
                ServerShare(cluster.servers[number].name, gpus, self.cpus * gpus, self.memory * gpus)
                for number, gpus in self.parts
            )
        )


class Packing:
    """A cluster while jobs are put into it."""

    def __init__(self, cluster: Cluster, kept: Iterable[Grant] = ()) -> None:
        self.cluster = cluster
        self.gpus, self.cpus, self.memory = cluster.gpus.copy(), cluster.cpus.copy(), cluster.memory.copy()
        self.grants: dict[str, Grant] = {}
        self._on: list[list[Grant]] = [[] for _ in cluster.servers]
        for grant in kept:
            self.put(grant)

    def on(self, number: int) -> list[Grant]:
        """The jobs on a server."""
        return self._on[number]

    def put(self, grant: Grant) -> None:
        """Give a job its part."""
        self.grants[grant.key] = grant
        for number, gpus in grant.parts:
            self.gpus[number] -= gpus
            self.cpus[number] -= gpus * grant.cpus
            self.memory[number] -= gpus * grant.memory
            self._on[number].append(grant)

    def resize(self, grant: Grant, cpus: float, memory: float) -> None:
        """Give a job other CPUs and memory for each GPU, where it is."""
        for number, gpus in grant.parts:
            self.cpus[number] += gpus * (grant.cpus - cpus)
            self.memory[number] += gpus * (grant.memory - memory)
        grant.cpus, grant.memory = cpus, memory

    def fits(self, gpus: int, cpus: Values, memory: Values) -> npt.NDArray[np.bool_]:
        """Servers that have so much left; cpus and memory are for all GPUs, by server."""
        return (self.gpus >= gpus) & (self.cpus >= cpus - EPSILON) & (self.memory >= memory - EPSILON)

    def spread(self, gpus: int) -> tuple[tuple[int, int], ...]:
        """The fewest servers that have so many GPUs together: those with most, and of the last only what is needed."""
        parts, left = [], gpus
        for number in np.argsort(-self.gpus, kind="stable").tolist():
            here = min(left, int(self.gpus[number]))
            if here:
                parts.append((number, here))
            left -= here
            if not left:
                return tuple(parts)
        raise AssertionError(f"{gpus} GPUs were counted as free, and {left} are not there")

    @property
    def is_spread(self) -> bool:
        """Whether any job is on several servers."""
        return any(len(grant.parts) > 1 for grant in self.grants.values())

    def holds(self, sizes: Iterable[int]) -> bool:
        """Whether jobs of so many GPUs fit, each on one server: the largest first, each where least is left."""
        left = self.gpus.tolist()
        for size in sorted(sizes, reverse=True):
            roomy = [number for number, gpus in enumerate(left) if gpus >= size]
            if not roomy:
                return False
            left[min(roomy, key=left.__getitem__)] -= size
        return True

    def make_room(self, number: int, cpus: float, memory: float) -> None:
        """Bring back to their floors as few as are needed of those on a server, so that this fits too."""
        shrunk: list[tuple[Grant, float, float]] = []
        for grant in sorted(self._on[number], key=lambda one: self._excess(one, number), reverse=True):
            if self.cpus[number] >= cpus - EPSILON and self.memory[number] >= memory - EPSILON:
                break
            if grant.is_fixed or self._excess(grant, number) <= EPSILON:
                continue
            shrunk.append((grant, grant.cpus, grant.memory))
            self.resize(grant, *self._floor(grant))
        for grant, before_cpus, before_memory in reversed(shrunk):
            gpus = dict(grant.parts)[number]
            more_cpus, more_memory = gpus * (before_cpus - grant.cpus), gpus * (before_memory - grant.memory)
            if self.cpus[number] - more_cpus >= cpus - EPSILON and self.memory[number] - more_memory >= memory - EPSILON:
                self.resize(grant, before_cpus, before_memory)
        assert self.cpus[number] >= cpus - EPSILON and self.memory[number] >= memory - EPSILON, (
            f"the floors of all on {self.cluster.servers[number].name} do not fit it"
        )

    def copy(self) -> "Packing":
        """The same, to try something in."""
        return Packing(
            self.cluster,
            [Grant(one.key, one.asks, one.parts, one.cpus, one.memory, one.is_fixed) for one in self.grants.values()],
        )

    def top_up(self, keys: Iterable[str]) -> None:
        """Give what is left on each server to jobs there that can use it, to the first of these first."""
        for key in keys:
            grant = self.grants[key]
            if grant.is_fixed or len(grant.parts) > 1:
                continue
            number, gpus = grant.parts[0]
            asks = grant.asks
            most_cpus = min(asks.cpus[number] / gpus, grant.cpus + max(0.0, self.cpus[number]) / gpus)
            most_memory = min(asks.memory[number] / gpus, grant.memory + max(0.0, self.memory[number]) / gpus)
            if most_cpus <= grant.cpus + EPSILON and most_memory <= grant.memory + EPSILON:
                continue
            cpus, memory = asks.matrix.trimmed(float(most_cpus), float(most_memory))
            rate = asks.matrix.rate(cpus, memory)
            if rate > grant.rate:
                cpus = min(cpus, grant.cpus) if asks.matrix.rate(grant.cpus, memory) == rate else cpus
                memory = min(memory, grant.memory) if asks.matrix.rate(cpus, grant.memory) == rate else memory
                self.resize(grant, cpus, memory)

    def check(self) -> None:
        """Assert that no server has given more than it has."""
        assert self.gpus.min() >= 0 and self.cpus.min() >= -EPSILON and self.memory.min() >= -EPSILON, (
            "more was given than is there"
        )

    def _floor(self, grant: Grant) -> tuple[float, float]:
        if len(grant.parts) == 1:
            number = grant.parts[0][0]
            return float(grant.asks.floor_cpus[number]), float(grant.asks.floor_memory[number])
        return grant.asks.matrix.trimmed(*self.cluster.proportional(grant.parts))

    def _excess(self, grant: Grant, number: int) -> float:
        """How much a job has above its floor, as a part of the server."""
        cpus, memory = self._floor(grant)
        gpus = dict(grant.parts)[number]
        above_cpus = max(0.0, grant.cpus - cpus) / self.cluster.cpus[number]
        above_memory = max(0.0, grant.memory - memory) / self.cluster.memory[number]
        return gpus * float(above_cpus + above_memory)


def at_most_its_part(share: ServerShare, server: Server) -> ServerShare:
    """What a job counts for that cannot be stopped, where its server had more when the lease began."""
    cpus, memory = (share.gpus * whole / server.gpus for whole in (server.cpus, server.memory_gb))
    if share.cpus <= cpus + EPSILON and share.memory_gb <= memory + EPSILON:
        return share
    return replace(share, cpus=min(share.cpus, cpus), memory_gb=min(share.memory_gb, memory))
