"""Counting what a loader does, always on.

A few additions per batch, in the training process only; what workers measure arrives with their batches.
"""

import time
from dataclasses import dataclass

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
    group: None = None
    """The group that batches are shared with, if any."""


class Meter:
    """The counters behind `LoaderStats`. They are plain numbers: a loader with its meter can be pickled and copied."""

    def __init__(self) -> None:
        self.batches = self.samples = self.workers = 0
        self.wait_s = self.prep_s = self.first_batch_s = 0.0

    def stats(self) -> LoaderStats:
        """The counters as they are now."""
        return LoaderStats(
            batches=self.batches,
            samples=self.samples,
            wait_s=self.wait_s,
            fetch_s=0.0,
            prep_s=self.prep_s,
            bytes_storage=0,
            bytes_cache=0,
            hits=0,
            misses=0,
            first_batch_s=self.first_batch_s,
            workers=self.workers,
        )
