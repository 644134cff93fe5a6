"""The one cost model: how fast a training loop goes with a given share of cores, cache, storage and device. Pure.

A worker reads a sample, then prepares it, then reads the next: the two never overlap inside one worker, only between
workers. `network` gives the rate of W of them from the rates that were measured for each number of readers and of
preparers. From it follows, for one worker, 1 / (1/P + (1-h)/S); for a store that is used up, S / (1-h); for one that
makes everybody wait, W / (t_prep + t_fetch); and near balance, less than the smaller of the two. Prefetch lets the loop
run beside all that, so the rate is the smaller of the loop's and the workers'. Without workers everything adds up. Cores
that the loop itself keeps busy are not the workers'.

`prep` is measured on cached samples, so their reading is inside it, and a miss has a read from storage in its place. In
the convention of the published formula F = 1 / (x/C + (1-x)/S) reading is outside; rates in which prep is faster than the
cache can only be meant so, and then F bounds the rate.

Where other hosts have a part of the samples in their caches, a miss is read from there or from storage: two places that
workers read from side by side (`network.from_either`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stoker.decide.limit import limit_of, loop_rate
from stoker.decide.network import Curve, from_either, last_root, throughput
from stoker.errors import ConfigError
from stoker.plan import HOST
from stoker.profile import Confidence, Rates

POLICIES = ("keep-first", "reuse-distance", "lru")
_NOTHING = 1e-9
_ORDER = 0.5
"""How much batches of uneven times cost, because the loop takes them in order; from simulations."""
_SAVES = 1.25
"""A store that is so many times as fast after a rest has a quota, and saves up; less than that is chance."""
_STEPS = 12
"""A curve of two places is known at so many counts of readers."""
AT_LIMIT = 0.98
"""A loop that reaches this part of its own rate is not held up by data."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a job is given. None, and factors of 1, leave it as it was measured."""

    workers: int | None = None
    cores: float | None = None
    cached: float = 0.0
    """The fraction of the dataset that fits the cache."""
    policy: str = "keep-first"
    storage_factor: float = 1.0
    gpu_factor: float = 1.0
    threads: bool = False
    """Workers are threads; it matters only where those were measured."""
    peers: float = 0.0
    """The part of all samples that comes from the caches of other hosts."""
    network: float | None = None
    """Samples per second that the network brings from them at most; None is no limit."""
    prep: str = HOST
    """Where pixels are computed. The forecast has other rates for each place where that was measured."""

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= 1:
            raise ConfigError(f"the cache fraction is a number from 0 to 1, not {self.cached}")
        if self.policy not in POLICIES:
            raise ConfigError(f"the cache policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"the number of workers must be 0 or more, not {self.workers}")
        if not 0 <= self.peers <= 1 - self.cached + _NOTHING:
            raise ConfigError(f"{self.cached} of the samples in the cache leave no {self.peers} to other hosts")
        for what, value in (
            ("cores", self.cores),
            ("storage", self.storage_factor),
            ("gpu", self.gpu_factor),
            ("network", self.network),
        ):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{what} must be more than 0, not {value}")


@dataclass(frozen=True, slots=True)
class Prediction:
    """How fast, why not faster, and how sure that is."""

    rate: float
    limit: str
    """gpu, prep or fetch."""
    prep_stall: float
    """The part of an epoch's time that the loop would wait if all samples were cached."""
    fetch_stall: float
    """The rest of its waiting."""
    low: float
    """The 95 % band of the rate."""
    high: float
    gpu: float
    """The rates of the stages alone, under this share."""
    prep: float
    fetch: float
    extrapolated: bool
    """It rests on counts beyond those measured, or on a guess of how the store answers several readers."""

    @property
    def stall(self) -> float:
        """The part of an epoch's time that the loop waits for data."""
        return self.prep_stall + self.fetch_stall


def hit_ratio(cached: float, policy: str = "keep-first") -> float:
    """The part of an epoch's samples that a cache of that fraction gives, for one reader of random permutations."""
    if policy == "lru" and 0 < cached < 1:
        return cached + (1 - cached) * math.log1p(-cached)
    return cached


def fetch_rate(hits: float, storage: float, cache: float) -> float:
    """The published F: reading alone, a part of it from the cache."""
    return 1 / (hits / cache + (1 - hits) / storage)


def predict(rates: Rates, share: Share, confidence: Confidence | None = None) -> Prediction:
    """What a loop with these rates does under this share; the band comes from the confidence in each rate."""
    for stage in ("gpu", "prep"):
        if getattr(rates, stage) <= _NOTHING:
            raise ConfigError(f"nothing can be predicted: the rate {stage} was not measured")
    job = _Job(rates, share)
    rate, gpu = job.rate(job.hits), rates.gpu * share.gpu_factor
    without_fetch = max(rate, job.rate(1.0))
    cautious_job = _Job(rates, share, cautious=True)
    cautious = cautious_job.rate(cautious_job.hits)
    falls, rises = (_moves(rates, share, confidence or Confidence(), rate, sign) for sign in (-1, 1))
    prep_stall, fetch_stall = max(0.0, rate / without_fetch - rate / gpu), 1 - rate / without_fetch
    return Prediction(
        rate=rate,
        limit=limit_of(prep_stall, fetch_stall),
        prep_stall=prep_stall,
        fetch_stall=fetch_stall,
        low=max(0.0, rate - math.hypot(falls, rate - min(rate, cautious))),
        high=rate + rises,
        gpu=gpu,
        prep=job.prep_rate(),
        fetch=job.fetch_rate(),
        extrapolated=cautious < 0.99 * rate,
    )


def _moves(rates: Rates, share: Share, confidence: Confidence, rate: float, sign: int) -> float:
    """How far the predicted rate moves when one measured rate is at an end of its interval, and the others stay."""
    ends = []
    for stage in ("gpu", "prep", "storage", "cache"):
        width = min(0.9, getattr(confidence, stage))
        if width:
            job = _Job(scaled(rates, stage, 1 + sign * width), share)
            ends.append(job.rate(job.hits) - rate)
    return math.hypot(*ends)


def scaled(rates: Rates, stage: str, factor: float) -> Rates:
    """The same rates with one stage faster or slower, at all its counts."""
    by = {"prep": ("prep_by_workers", "prep_by_threads"), "storage": ("storage_by_readers",)}.get(stage, ())
    changed: dict[str, Any] = {stage: getattr(rates, stage) * factor}
    if stage == "storage":
        changed["storage_rested"] = rates.storage_rested * factor
    changed |= {name: {count: rate * factor for count, rate in getattr(rates, name).items()} for name in by}
    return replace(rates, **changed)


def seen_together(rates: Rates, share: Share, cached_rate: float) -> Rates:
    """Rates whose loop takes from the workers what explains how fast both went together, with all samples cached.

    Where the cores are not enough for both, it is more than the loop's processor time: handing over, waking each other,
    and memory that both use. Where there are enough, nothing of that is the loop's, and the rates stay as they are.
    """
    cached = replace(share, cached=1.0)
    workers = rates.workers if share.workers is None else share.workers
    wanted = workers * rates.prep_busy + cached_rate * rates.loop_cores / rates.gpu
    expected = predict(rates, cached)
    if not workers or wanted < rates.cores or expected.stall < 1 - AT_LIMIT or not 0 < cached_rate < expected.rate:
        return rates
    more = last_root(
        lambda cores: predict(replace(rates, loop_cores=rates.loop_cores + cores), cached).rate - cached_rate,
        max(0.0, rates.cores - rates.loop_cores),
    )
    return replace(rates, loop_cores=rates.loop_cores + more)


class _Job:
    """Rates and a share, made ready to be asked. `cautious` grants nothing that was not measured."""

    def __init__(self, rates: Rates, share: Share, *, cautious: bool = False) -> None:
        self.workers = rates.workers if share.workers is None else share.workers
        self.readers = max(1, self.workers)
        self.cores = share.cores or rates.cores or math.inf
        self.hits = hit_ratio(share.cached, share.policy)
        self.spread = rates.spread
        self.busy = rates.prep_busy
        self.batch = rates.batch
        self.loop = loop_rate(rates.gpu * share.gpu_factor, rates.handover)
        self.loop_core_s = rates.loop_cores / rates.gpu
        counted = max(1, rates.workers)
        self.cache_s = counted / rates.cache if rates.cache else 0.0
        self.reads_inside = not rates.cache or rates.prep <= rates.cache
        self.read_part = rates.prep / rates.cache if rates.cache else 0.0  # the same in a crowd, where all takes longer
        knee = (rates.cores or math.inf) / self.busy if self.busy else math.inf
        self._learn_prep(_prep_points(rates, share, self.workers), knee, cautious)
        store = _points({**rates.storage_by_readers, counted: rates.storage or rates.storage_by_readers.get(counted, 0.0)})
        if len(store) == 1 and not cautious:  # as if one reader alone could have all of it: the published formula
            store = {1: next(iter(store.values()))}
        store = {count: rate * share.storage_factor for count, rate in store.items()}
        self.store = Curve(store, growing=len(store) > 1 and not cautious) if store else None
        rested = rates.storage_rested * share.storage_factor
        self.rested = rested if self.store and rested > _SAVES * self.store(1) else 0.0
        self._learn_peers(rates, share, counted, cautious)

    def _learn_prep(self, points: dict[int, float], knee: float, cautious: bool) -> None:
        """Keep two kinds of measurements apart: counts of workers that had a core each, and larger counts."""
        free = {count: rate for count, rate in points.items() if count <= knee} or dict([min(points.items())])
        self.line = Curve(free, growing=not cautious)
        full = self.line(knee) if knee < math.inf else 0.0
        self.crowded = {1.0: 1.0} | {count / knee: rate / full for count, rate in points.items() if count > knee}

    def _learn_peers(self, rates: Rates, share: Share, counted: int, cautious: bool) -> None:
        """Other hosts beside storage. Their rate is used as a single one of storage is: one reader could have all of it."""
        part = share.peers / (1 - self.hits) if share.peers > _NOTHING else 0.0
        self.from_peers = min(1.0, part) if part > _NOTHING else 0.0
        self.missed: Curve | None = None
        if self.from_peers:
            rate = min(share.network or math.inf, rates.peer or math.inf, 1 / _NOTHING)
            network = Curve({counted if cautious else 1: rate}, growing=False)
            counts = sorted({round(self.readers ** (step / _STEPS)) for step in range(_STEPS + 1)})
            points = {count: from_either(count, network, self.stored, self.from_peers) for count in counts}
            self.missed = Curve(points, growing=False)

    def preparing(self, count: float, cores: float, hits: float) -> float:
        """The rate of so many workers that prepare at once. For misses, reading from the cache is not in it."""
        room = cores / self.busy if self.busy else math.inf
        working = min(count, room)
        if working <= 0:
            return 0.0
        sample_s = working / self.line(working)
        if count > room and len(self.crowded) > 1:
            sample_s /= float(np.interp(count / room, list(self.crowded), list(self.crowded.values())))
        read_s = (hits - 1) * self.read_part * sample_s if self.reads_inside else hits * self.cache_s
        return working / max(sample_s + read_s, 0.02 * sample_s)

    def prep_rate(self) -> float:
        """Preparing alone, on the cores that a loop of that rate would leave."""
        hits = 1.0 if self.reads_inside else 0.0
        if not self.workers or not self.loop_core_s or math.isinf(self.cores):
            return self.preparing(self.readers, self.cores, hits)
        at_most = min(self.cores / self.loop_core_s, self.preparing(self.readers, self.cores, hits))
        return last_root(
            lambda rate: self.preparing(self.readers, self.cores - rate * self.loop_core_s, hits) - rate, at_most
        )

    @property
    def reads(self) -> bool:
        """Whether what is not in the cache costs anything."""
        return self.store is not None or self.missed is not None

    def fetch_rate(self) -> float:
        """Reading alone."""
        cache = self.readers / self.cache_s if self.cache_s else math.inf
        missed = self.missed or self.store
        return cache if missed is None or self.hits == 1 else fetch_rate(self.hits, missed(self.readers), cache)

    def reading(self, count: float) -> float:
        """The rate of so many workers that read what is not in the cache at once."""
        return self.stored(count) if self.missed is None else self.missed(count)

    def stored(self, count: float) -> float:
        """From storage. One with a quota has rested, and saved up for them; one that was not measured costs nothing."""
        return max(self.store(count), count * self.rested) if self.store is not None else count / _NOTHING

    def lasting(self, rate: float, hits: float) -> float:
        """A rate, limited to what the store can give all the time."""
        from_storage = (1 - hits) * (1 - self.from_peers)
        if self.store is None or not self.rested or from_storage < _NOTHING:
            return rate
        return min(rate, self.store(self.readers) / from_storage)

    def rate(self, hits: float) -> float:
        """Samples per second of the whole loop."""
        if not self.workers:
            fetch_s = (1 - hits) / self.reading(1) if self.reads else 0.0
            rate = 1 / (1 / self.loop + 1 / self.preparing(1, max(1.0, self.cores), hits) + fetch_s)
            return self.lasting(rate, hits)
        at_most = min(self.loop, self.delivered(self.cores, hits))
        if not self.loop_core_s or math.isinf(self.cores):
            return at_most
        at_most = min(at_most, self.cores / self.loop_core_s)
        return last_root(lambda rate: self.delivered(self.cores - rate * self.loop_core_s, hits) - rate, at_most)

    def delivered(self, cores: float, hits: float) -> float:
        """The workers' rate with a loop that takes every batch at once."""
        if cores <= 0:
            return 0.0
        if hits == 1 or not self.reads:
            return self.preparing(self.workers, cores, 1.0)
        alike = (1 - hits) * max(self.from_peers, 1 - self.from_peers)  # a hit among misses makes times differ, too
        chance = 1 - max(0.0, 1 - self.spread) * alike
        rate = throughput(self.workers, lambda n: self.preparing(n, cores, hits), self.reading, 1 - hits, chance)
        rate /= 1 + _ORDER * self._uneven(rate, cores, hits) * (1 - 1 / self.workers)
        rate = self.lasting(rate, hits)
        if not self.reads_inside:
            rate = min(rate, self.fetch_rate())
        return min(rate, self.preparing(self.workers, cores, 1.0)) if self.cache_s <= 1 / self.reading(1) else rate

    def _uneven(self, rate: float, cores: float, hits: float) -> float:
        """The squared spread of the times of batches that comes from reading some samples and not others."""
        cycle_s = self.workers / rate
        fetch_s = max(0.0, cycle_s - self.workers / self.preparing(self.workers, cores, hits)) / (1 - hits)
        return (hits + self.spread**2) * (1 - hits) * (fetch_s / cycle_s) ** 2 / self.batch if self.batch else 0.0


def _points(points: Mapping[int, float]) -> dict[int, float]:
    """Measured rates by rising count. The training loop itself counts as one worker; unmeasured counts are left out."""
    return {max(1, count): rate for count, rate in sorted(points.items()) if rate > _NOTHING}


def _prep_points(rates: Rates, share: Share, workers: int) -> dict[int, float]:
    """The measured rates of this kind of workers. `prep` is one of them, unless the loader had no workers."""
    threads = _points(rates.prep_by_threads) if share.threads else {}
    if threads:
        return threads
    measured, own = _points(rates.prep_by_workers), {max(1, rates.workers): rates.prep}
    return _points(measured | own) if bool(rates.workers) == bool(workers) or not measured else measured
