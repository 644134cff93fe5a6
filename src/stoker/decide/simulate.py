"""Epochs of several hosts with several GPUs each, played through with the decisions that a live run would take. Pure.

Two parts. `look_up` finds out where every sample of every batch comes from: each host has one cache for its GPUs, with the
ledger and policies of the live one, and may see the caches of the others. `play` lets time pass:

    a batch     is loaded when the one before it is, and one of the places in its queue is free, and takes T_L + T_P
    a GPU       wants its next batch when training on the last one ends, and waits if it is not there
    all GPUs    begin an iteration together, when the last of them has its batch
    imbalanced  an iteration in which the waits of two GPUs differ by more than a tenth of the training time

Hits are of two kinds. A demand hit is a sample that is in the host's cache when its batch is loaded: it was used before. A
service hit is one that is there when the GPU wants it: also those that were loaded ahead in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.cache.replay import SimulatedCache, far_enough, taken
from stoker.decide.loading import Loading, Needs, SampleTime
from stoker.decide.threads import Queue, assign, divide
from stoker.errors import ConfigError
from stoker.order import Drawn

IMBALANCED = 0.1


@dataclass(frozen=True, slots=True)
class TrainingCluster:
    """Hosts that are alike, and what is trained on them."""

    hosts: int
    gpus: int
    """In each host."""
    samples: int
    cached: int
    """Samples that the cache of one host holds."""
    batch: int
    train_s: float
    workers: int
    """For reading and preparing, in each host."""
    loading: Loading
    """What the workers of one GPU's queue read."""
    prepare: SampleTime | None
    """What those who prepare for all GPUs of a host do. None: who loads a batch prepares it, and `loading` is both."""
    sample_bytes: float = 0.0
    ahead: int = 2
    """Places in the queue of a GPU, in batches."""
    costs: tuple[float, ...] = ()
    """How many times as long it takes to load for each GPU of a host; all are alike if there are none."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"{self.samples} samples are not one batch of {self.batch} for each of {self.world} GPUs")
        if self.costs and len(self.costs) != self.gpus:
            raise ConfigError(f"{len(self.costs)} costs for {self.gpus} GPUs of a host")

    @property
    def world(self) -> int:
        """All GPUs."""
        return self.hosts * self.gpus

    @property
    def iterations(self) -> int:
        """Of an epoch, without a last part of one."""
        return self.samples // (self.batch * self.world)


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to load data."""

    name: str
    policy: str
    """Of the host's cache; `replay.BY_FREQUENCY` too."""
    peers: bool
    """Whether what is not here is taken from another host's cache."""
    readers: int | None
    """For each GPU, whatever it needs; the rest prepares. None: they go where they are needed."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the samples of each batch come from: counts by iteration (all epochs in a row), host and GPU."""

    here: NDArray[np.int64]
    peer: NDArray[np.int64]
    """In the cache of another host."""
    batch: int


@dataclass(frozen=True, slots=True)
class Played:
    """What became of it, in the epochs that count."""

    name: str
    epoch_s: float
    imbalanced: float
    """The part of the iterations."""
    demand_hits: float
    service_hits: float
    gpu_busy: float
    """The part of the time that GPUs train."""


def look_up(cluster: TrainingCluster, policy: str, epochs: int, seed: int = 0) -> Sources:
    """Play all caches through, iteration by iteration, so that hosts see each other as they are at that moment."""
    order, size = Drawn(cluster.samples, seed), cluster.batch * cluster.gpus
    ahead = far_enough(cluster.hosts)
    caches = [
        SimulatedCache(taken(order, host, cluster.hosts), cluster.cached, policy, horizon=ahead, epochs=epochs)
        for host in range(cluster.hosts)
    ]
    holders = [0] * cluster.samples
    shape = (epochs * cluster.iterations, cluster.hosts, cluster.gpus)
    here, peer = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for epoch in range(epochs):
        reads = [cache.begin(epoch).tolist() for cache in caches]
        for iteration in range(cluster.iterations):
            row = epoch * cluster.iterations + iteration
            for host, cache in enumerate(caches):
                for place, key in enumerate(reads[host][iteration * size : (iteration + 1) * size]):
                    admission = cache.use(key)
                    if admission is None:
                        here[row, host, place % cluster.gpus] += 1
                        continue
                    peer[row, host, place % cluster.gpus] += holders[key] > 0
                    holders[key] += admission.kept
                    for evicted in admission.evicted:
                        holders[evicted] -= 1
    return Sources(here, peer, cluster.batch)


def play(cluster: TrainingCluster, contender: Contender, sources: Sources, after: int) -> Played:
    """Let time pass. The first `after` epochs do not count: caches fill."""
    here = sources.here
    peer = sources.peer if contender.peers else np.zeros_like(sources.peer)
    count, skipped = len(here), after * cluster.iterations
    if skipped >= count:
        raise ConfigError(f"{after} epochs that do not count, of {count // cluster.iterations}")
    begins = np.zeros(count)
    ready = np.zeros((cluster.hosts, cluster.gpus))
    spreads, served = np.zeros(count), np.zeros(count)
    for row in range(count):
        load_s, prepare_s = _times(cluster, contender, here[row], peer[row])
        began = np.maximum(ready, begins[row - cluster.ahead] if row >= cluster.ahead else 0.0)
        ready = began + load_s + prepare_s
        wanted = begins[row - 1] + cluster.train_s if row else 0.0
        waits = np.maximum(0.0, ready - wanted)
        begins[row] = wanted + waits.max()
        spreads[row] = waits.max() - waits.min()
        in_time = 1 - np.clip(waits / np.maximum(load_s, 1e-12), 0.0, 1.0)
        served[row] = (here[row] + (sources.batch - here[row]) * in_time).mean()
    rows = count - skipped
    seconds = begins[-1] + cluster.train_s - (begins[skipped - 1] + cluster.train_s if skipped else 0.0)
    return Played(
        name=contender.name,
        epoch_s=float(seconds / rows * cluster.iterations),
        imbalanced=float((spreads[skipped:] > IMBALANCED * cluster.train_s).mean()),
        demand_hits=float(here[skipped:].mean() / sources.batch),
        service_hits=float(served[skipped:].mean() / sources.batch),
        gpu_busy=float(rows * cluster.train_s / seconds),
    )


def _times(
    cluster: TrainingCluster, contender: Contender, here: NDArray[np.int64], peer: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How long each GPU's batch is loaded, and prepared, with the workers that the contender gives it."""
    load_s, prepare_s = np.zeros(here.shape), np.zeros(here.shape)
    for host in range(cluster.hosts):
        tables = [
            cost
            * cluster.loading.seconds(
                Needs(int(mine), int(theirs), cluster.batch - int(mine) - int(theirs), cluster.sample_bytes),
                cluster.workers,
            )
            for mine, theirs, cost in zip(here[host], peer[host], cluster.costs or [1.0] * cluster.gpus, strict=True)
        ]
        readers, preparers = _workers(cluster, contender, [Queue(table) for table in tables])
        load_s[host] = [table[count] for table, count in zip(tables, readers, strict=True)]
        if cluster.prepare is not None:
            prepare_s[host] = cluster.batch * cluster.gpus * cluster.prepare(preparers)
    return load_s, prepare_s


def _workers(cluster: TrainingCluster, contender: Contender, queues: Sequence[Queue]) -> tuple[Sequence[int], int]:
    """Readers by queue, and those who prepare."""
    if contender.readers is not None:
        return [contender.readers] * cluster.gpus, cluster.workers - contender.readers * cluster.gpus
    if cluster.prepare is None:
        return assign(queues, cluster.train_s, cluster.workers).workers, 0
    found = divide(queues, cluster.train_s, cluster.workers, cluster.prepare, cluster.batch * cluster.gpus)
    return found.loading.workers, found.preparing
