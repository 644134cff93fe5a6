"""A loader, event by event: workers that read and prepare in turn, one store, a bounded prefetch, one training loop.

The truth that the cost model is compared with. It shares nothing with the model: no rate, no formula, only the way a
loader works. A worker takes its batches in torch's order (batch i is worker i mod N's), sample by sample; it may be so
many batches ahead of the loop, which takes them in order. What the model is told comes from runs of the same simulation,
as an analysis would measure it: reading alone, preparing alone.
"""

import heapq
import random
from dataclasses import dataclass, replace

from stoker.profile import Rates

_SLICE_S = 0.1
"""Linux's, for disks."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is simulated. Times are seconds for one sample."""

    workers: int
    cores: int = 64
    batch: int = 32
    prefetch: int = 2
    compute_s: float = 0.0
    prep_s: float = 0.0
    latency_s: float = 0.0
    """A wait that any number of readers may share."""
    transfer_s: float = 0.0
    """The store's own time, for one reader at a time."""
    quota_s: float = 0.0
    """The time that a quota allows for one sample, on average: what is due for a slice of time comes at once."""
    hit_s: float = 0.0
    cached: float = 0.0
    peers: float = 0.0
    """The part of all samples that other hosts send."""
    link_s: float = 0.0
    """The network's time for one of them, one after the other."""
    spread: float = 0.0
    """Standard deviation of the times of a sample, relative to their mean."""
    loop_on_core: bool = False
    """The loop computes on one of the cores, too, and not on a device."""

    def rate(self, batches: int = 400, seed: int = 0) -> float:
        """Samples per second over so many batches, after a beginning that is left out."""
        return _Run(self, random.Random(seed)).rate(batches)

    def measured(self, batches: int = 400) -> Rates:
        """What an analysis would find: every stage alone, at one worker and at all."""
        counts = sorted({1, *(2**power for power in range(1, 4) if 2**power < self.workers), self.workers})
        alone = replace(self, compute_s=0.0, cached=0.0, peers=0.0)
        reading = {n: replace(alone, workers=n, prep_s=0.0).rate(batches, 1) for n in counts}
        preparing = {n: replace(alone, workers=n, cached=1.0).rate(batches, 2) for n in counts}
        rest_s = max(1 / preparing[1], 1 / reading[1])
        resting = replace(alone, workers=1, prep_s=rest_s, spread=0.0).rate(batches, 3)
        return Rates(
            gpu=1 / self.compute_s if self.compute_s else 1e12,
            loop_cores=float(self.loop_on_core),
            spread=self.spread,
            prep=preparing[self.workers],
            prep_by_workers=preparing,
            storage=reading[self.workers],
            storage_by_readers=reading,
            storage_rested=1 / (1 / resting - rest_s),
            cache=self.workers / self.hit_s if self.hit_s else 1e12,
            workers=self.workers,
            batch=self.batch,
            cores=float(self.cores),
        )


class _Run:
    """One simulation. An event is a worker that is ready for its next step."""

    def __init__(self, pipeline: Pipeline, rng: random.Random) -> None:
        self.p = pipeline
        self.rng = rng
        self.events: list[tuple[float, int, int, str]] = []
        self.cores = [0.0] * pipeline.cores
        self.store_free_s = self.link_free_s = 0.0
        self.slice, self.due = 0, 0.0
        self.computing = 0
        self.done: set[int] = set()
        self.taken: list[float] = []
        self.waiting: dict[int, int] = {}
        self.left = [0] * pipeline.workers
        self.batch_of = list(range(pipeline.workers))
        self.count = 0

    def time_s(self, mean_s: float) -> float:
        """One sample's, by a gamma distribution."""
        if not self.p.spread or not mean_s:
            return mean_s
        shape = self.p.spread**-2
        return self.rng.gammavariate(shape, mean_s / shape)

    def put(self, at_s: float, worker: int, step: str) -> None:
        self.count += 1
        heapq.heappush(self.events, (at_s, self.count, worker, step))

    def rate(self, batches: int) -> float:
        p = self.p
        begin = 2 * p.prefetch * p.workers
        batches = begin + 1 + max(10, -(-batches // p.workers)) * p.workers  # whole rounds
        for worker in range(p.workers):
            self.start(worker, worker, self.rng.random() * (p.prep_s + p.latency_s + p.transfer_s))
        while len(self.taken) < batches:
            now, _, worker, step = heapq.heappop(self.events)
            getattr(self, step)(now, worker)
        return (batches - 1 - begin) * p.batch / (self.taken[batches - 1] - self.taken[begin])

    def start(self, worker: int, batch: int, at_s: float) -> None:
        self.batch_of[worker], self.left[worker] = batch, self.p.batch
        self.put(at_s, worker, "begin")

    def begin(self, now: float, worker: int) -> None:
        place = self.rng.random()
        if place < self.p.cached:
            self.prepare(now, worker, self.p.hit_s)
        elif place < self.p.cached + self.p.peers:
            self.link_free_s = max(now, self.link_free_s) + self.p.link_s
            self.put(self.link_free_s, worker, "prepare")
        elif self.p.latency_s:
            self.put(now + self.time_s(self.p.latency_s), worker, "transfer")
        else:
            self.transfer(now, worker)

    def transfer(self, now: float, worker: int) -> None:
        self.store_free_s = self.permitted(max(now, self.store_free_s)) + self.time_s(self.p.transfer_s)
        self.put(self.store_free_s, worker, "prepare")

    def permitted(self, now: float) -> float:
        """When a quota lets the next sample pass. Of what was not used up one slice is kept."""
        if not self.p.quota_s:
            return now
        a_slice = _SLICE_S / self.p.quota_s
        while True:
            passed = int(now / _SLICE_S + 1e-9) + 1 - self.slice
            self.slice, self.due = self.slice + passed, min(self.due + passed * a_slice, 2 * a_slice)
            if self.due >= 1:
                self.due -= 1
                return now
            now = self.slice * _SLICE_S

    def prepare(self, now: float, worker: int, more_s: float = 0.0) -> None:
        free_s = heapq.heappop(self.cores)
        end_s = max(now, free_s) + self.time_s(self.p.prep_s) + more_s
        heapq.heappush(self.cores, end_s)
        self.put(end_s, worker, "end")

    def end(self, now: float, worker: int) -> None:
        self.left[worker] -= 1
        if self.left[worker]:
            self.begin(now, worker)
            return
        batch = self.batch_of[worker]
        self.done.add(batch)
        self.take(now)
        self.go_on(now, worker, batch + self.p.workers)

    def take(self, now: float) -> None:
        """The loop is free, or a batch is finished: both must be."""
        if self.computing or len(self.taken) not in self.done:
            return
        batch = len(self.taken)
        self.done.remove(batch)
        self.taken.append(now)
        self.computing = self.p.batch
        self.compute(now)
        later = batch + self.p.prefetch * self.p.workers
        worker = self.waiting.pop(later, None)
        if worker is not None:
            self.start(worker, later, now)

    def compute(self, now: float) -> None:
        if not self.p.loop_on_core:
            self.computing = 1
            self.put(now + self.p.compute_s * self.p.batch, 0, "computed")
            return
        end_s = max(now, heapq.heappop(self.cores)) + self.p.compute_s
        heapq.heappush(self.cores, end_s)
        self.put(end_s, 0, "computed")

    def computed(self, now: float, _: int) -> None:
        self.computing -= 1
        if self.computing:
            self.compute(now)
        else:
            self.take(now)

    def go_on(self, now: float, worker: int, batch: int) -> None:
        earlier = batch - self.p.prefetch * self.p.workers
        if earlier < len(self.taken):
            self.start(worker, batch, now)
        else:
            self.waiting[batch] = worker
