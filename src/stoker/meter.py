"""Counts what a loader does. It is always on.

It costs a few additions per batch, in the training process only. Measurements of workers arrive with their batches.
"""

import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.host import forks

now = time.monotonic
"""Seconds on a clock that all processes of a host share."""


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made."""

    batches: int
    """Batches handed out."""
    samples: int
    """Samples in them."""
    wait_s: float
    """Seconds that the training loop waited inside the loader."""
    fetch_s: float
    """Seconds that preparation spent reading; 0 where the dataset does not tell reading from preparing."""
    prep_s: float
    """Seconds spent preparing batches, summed over workers (a worker that has nothing to do does not count)."""
    bytes_storage: int
    """Bytes read from storage, as far as they are known."""
    bytes_cache: int
    """Bytes read from the cache."""
    hits: int
    """Samples found in the cache."""
    misses: int
    """Samples looked for in the cache and not found."""
    first_batch_s: float
    """Seconds from `iter()` to the first batch, of the latest epoch."""
    workers: int
    """Workers of the latest epoch."""
    cache_faults: int = 0
    """How often the cache could not do what it should; the bytes came from storage then."""
    helped: int = 0
    """Batches that workers of other ranks have made for this one."""
    read_ahead: int = 0
    """Samples among the misses that the reading process of the host had read before a worker asked for them."""
    hits_disk: int = 0
    """Samples among the hits that the disk tier gave, not memory."""
    hits_peer: int = 0
    """Samples that came from the caches of other hosts."""
    bytes_peer: int = 0
    """Bytes that came from the caches of other hosts."""
    on_device: int = 0
    """Samples that the device finished."""
    decoded_on_device: int = 0
    """Samples among them whose pictures it decoded."""
    remote: int = 0
    """Samples that were prepared on other hosts."""
    remote_ratio: float = 0.0
    """The part of all batches that other hosts may prepare now."""
    remote_part: str = ""
    """What other hosts do of these batches now: "all", "prepare" or "samples"."""
    remote_workers: int = 0
    """Workers on other hosts that are there now."""
    remote_wanted: int = 0
    """How many would remove the loop's stall, as was decided last; 0 where none are needed."""
    remote_bytes: int = 0
    """Bytes of the batches that came from them."""
    group: Any = None
    """The group that batches are shared with, if any."""


Counts = tuple[int, int, int, int, float, int, str, int, int, int, int]
"""Hits, misses, bytes from the cache and from storage, seconds spent fetching, faults, the first in words, read ahead,
items and bytes from other hosts, and hits of the disk tier."""


class Tally:
    """Counts what is fetched in one process, by any of its threads, until somebody takes the counts."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._clear()
        _tallies.add(self)

    def _clear(self) -> None:
        self._hits = self._misses = self._bytes_cache = self._bytes_storage = self._faults = self._ahead = 0
        self._hits_peer = self._bytes_peer = self._hits_disk = 0
        self._fetch_s = 0.0
        self._fault = ""

    def __reduce__(self) -> tuple[type["Tally"], tuple[()]]:
        return Tally, ()  # another process counts for itself

    def hit(self, size: int, *, is_on_disk: bool = False) -> None:
        """An item came from the cache: from memory, or from the disk tier."""
        with self._lock:
            self._hits += 1
            self._hits_disk += is_on_disk
            self._bytes_cache += size

    def miss(self, size: int, *, is_looked_for: bool = True) -> None:
        """An item came from storage, perhaps without having been looked for in a cache."""
        with self._lock:
            self._misses += is_looked_for
            self._bytes_storage += size

    def ahead(self, size: int, *, is_from_peer: bool = False) -> None:
        """An item came from storage, or from another host, but before it was asked for."""
        if is_from_peer:
            self.peer(size)
            return
        with self._lock:
            self._misses += 1
            self._bytes_storage += size
            self._ahead += 1

    def peer(self, size: int) -> None:
        """An item came from another host."""
        with self._lock:
            self._hits_peer += 1
            self._bytes_peer += size

    def spent(self, seconds: float) -> None:
        """Time spent fetching."""
        with self._lock:
            self._fetch_s += seconds

    def fail(self, why: str) -> None:
        """The cache could not do what it should."""
        with self._lock:
            self._faults += 1
            self._fault = self._fault or why

    def take(self) -> Counts:
        """The counts since the last call."""
        with self._lock:
            hits_misses = self._hits, self._misses
            bytes_from = self._bytes_cache, self._bytes_storage
            others = self._hits_peer, self._bytes_peer, self._hits_disk
            counts = *hits_misses, *bytes_from, self._fetch_s, self._faults, self._fault, self._ahead, *others
            self._clear()
            return counts


_tallies: "weakref.WeakSet[Tally]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Make locks anew: another thread may have held them at the fork, and does not exist in the child."""
    for tally in list(_tallies):
        tally._lock = threading.RLock()


forks.register(forks.Stage.LOCKS, after_in_child=_after_fork_in_child)


class Meter:
    """The counters behind `LoaderStats`. They are plain numbers: a loader with its meter can be pickled and copied."""

    def __init__(self) -> None:
        self.batches = self.samples = self.workers = 0
        self.wait_s = self.prep_s = self.first_batch_s = 0.0
        self.hits = self.misses = self.bytes_cache = self.bytes_storage = self.faults = 0
        self.fetch_s = 0.0
        self.helped = self.remote = self.read_ahead = self.hits_disk = self.hits_peer = self.bytes_peer = 0
        self.on_device = self.decoded_on_device = 0
        self.remote_ratio, self.remote_part = 0.0, ""
        self.remote_workers = self.remote_wanted = self.remote_bytes = 0
        self.began_at = 0.0  # when the loader was first iterated
        self.has_warned = False
        self.group = ""  # that it reads in

    def add(self, counts: Counts) -> None:
        """Add what a worker has counted since its last report."""
        hits, misses, bytes_cache, bytes_storage, fetch_s, faults, fault, read_ahead, *others = counts
        hits_peer, bytes_peer, hits_disk = others
        self.hits += hits
        self.misses += misses
        self.bytes_cache += bytes_cache
        self.bytes_storage += bytes_storage
        self.fetch_s += fetch_s
        self.faults += faults
        self.read_ahead += read_ahead
        self.hits_disk += hits_disk
        self.hits_peer += hits_peer
        self.bytes_peer += bytes_peer
        if fault and not self.has_warned:
            self.has_warned = True
            warnings.warn(f"{fault}; what it does not give is read from storage", stacklevel=2)

    def help(self, remote: int, remote_bytes: int) -> None:
        """A worker of another rank has made a batch, or one of another host, of so many samples and bytes."""
        self.helped += not remote
        self.remote += remote
        self.remote_bytes += remote_bytes

    def stats(self) -> LoaderStats:
        """The counters as they are now."""
        return LoaderStats(
            batches=self.batches,
            samples=self.samples,
            wait_s=self.wait_s,
            fetch_s=self.fetch_s,
            prep_s=self.prep_s,
            bytes_storage=self.bytes_storage,
            bytes_cache=self.bytes_cache,
            hits=self.hits,
            misses=self.misses,
            first_batch_s=self.first_batch_s,
            workers=self.workers,
            cache_faults=self.faults,
            helped=self.helped,
            read_ahead=self.read_ahead,
            hits_disk=self.hits_disk,
            hits_peer=self.hits_peer,
            bytes_peer=self.bytes_peer,
            on_device=self.on_device,
            decoded_on_device=self.decoded_on_device,
            remote=self.remote,
            remote_ratio=self.remote_ratio,
            remote_part=self.remote_part,
            remote_workers=self.remote_workers,
            remote_wanted=self.remote_wanted,
            remote_bytes=self.remote_bytes,
        )


class Scalars:
    """What loaders have done from one call to the next, in numbers that loggers take."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = meters
        self._at: float | None = None
        self._before: tuple[float, ...] = (0.0,) * 7

    def take(self, prefix: str = "") -> dict[str, float]:
        """The numbers, each under its name with `prefix` before it. The first call tells of all since the first `iter()`.

        `waiting_pct` is the share of the time that the training loop waited inside the loader; `samples_per_s` and
        `batches_per_s` are what it got; `fetch_pct` is the workers' share of reading and `hits_pct` the reads that the
        cache could answer, where they are known.
        """
        at = now()
        sums = self._sums()
        began = self._at
        if began is None:
            began = min((meter.began_at for meter in self._meters if meter.began_at), default=at)
        wait_s, samples, batches, prep_s, fetch_s, hits, misses = map(float.__sub__, sums, self._before)
        self._at, self._before = at, sums
        span_s = max(at - began, 1e-9)
        values = {
            "waiting_pct": min(100.0, 100 * wait_s / span_s),
            "samples_per_s": samples / span_s,
            "batches_per_s": batches / span_s,
        }
        if fetch_s:
            values["fetch_pct"] = min(100.0, 100 * fetch_s / max(prep_s, fetch_s))
        if hits + misses:
            values["hits_pct"] = 100 * hits / (hits + misses)
        return {f"{prefix}{name}": value for name, value in values.items()}

    def _sums(self) -> tuple[float, ...]:
        each = [(m.wait_s, m.samples, m.batches, m.prep_s, m.fetch_s, m.hits, m.misses) for m in self._meters]
        return tuple(float(sum(values)) for values in zip(*each, strict=True)) or (0.0,) * 7
