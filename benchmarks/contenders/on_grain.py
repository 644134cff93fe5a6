"""Grain: a dataset of random access, shuffled, batched, prefetched by processes."""

import json
from pathlib import Path
from typing import Any

import grain

from contenders.payloads import Samples, Workload

WORKERS = 2


class Loader:
    """Its iterator, made anew for each epoch."""

    def __init__(self, name: str, workload: Workload, plain: Path) -> None:
        self.epoch, self.workload, self.plain = 0, workload, plain
        self.iterator: Any = None
        self.resumed: Any = None

    def __iter__(self) -> Any:
        self.epoch += 1
        source = grain.MapDataset.source(Samples(self.workload, self.plain)).shuffle(
            seed=self.epoch if self.resumed is None else self.resumed["epoch"]
        )
        ahead = 4 * self.workload.batch  # as far as others; the default would hold whole volumes by the hundred
        reading = grain.ReadOptions(num_threads=16 if self.workload.in_files else 0, prefetch_buffer_size=ahead)
        batches = source.to_iter_dataset(reading).batch(self.workload.batch)
        self.iterator = iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS)))
        if self.resumed is not None:
            self.iterator.set_state(self.resumed["state"])
            self.resumed = None
        return self.iterator

    def state(self) -> Any:
        """Where it is."""
        return {"epoch": self.epoch, "state": self.iterator.get_state()}

    def resume(self, state: Any) -> None:
        """Go on from there at the next epoch."""
        self.resumed = json.loads(json.dumps(state))

    def close(self) -> None:
        """End its processes."""
        if self.iterator is not None:
            self.iterator.close()
            self.iterator = None
