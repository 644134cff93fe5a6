"""DALI on CPU: its own readers and decoders for files, and Python workers for what it has no operator for."""

from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from contenders.payloads import CROP, HEARD, VOLUME, Samples, Workload

WORKERS = 2


class _InOrder:
    """A sample of an epoch that is shuffled, for a worker."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.order, self.epoch = samples, np.zeros(0, np.int64), -1

    def __call__(self, place: Any) -> tuple[Any, Any]:
        if place.idx_in_epoch >= len(self.samples):
            raise StopIteration
        if self.epoch != place.epoch_idx:
            self.epoch, self.order = place.epoch_idx, np.random.default_rng(place.epoch_idx).permutation(len(self.samples))
        sample, number = self.samples[int(self.order[place.idx_in_epoch])]
        return sample, np.array(number, np.int64)


@pipeline_def
def _files(workload: Workload, plain: Path) -> Any:
    paths = [str(plain / f"{number:06}.bin") for number in range(workload.count)]
    raw, number = fn.readers.file(
        files=paths, labels=list(range(workload.count)), shuffle_after_epoch=True, name="reader", prefetch_queue_depth=2
    )
    if workload.name == "jpeg":
        pixels = fn.decoders.image(raw, device="cpu", output_type=types.RGB)
        x, y = fn.random.uniform(range=(0.0, 1.0)), fn.random.uniform(range=(0.0, 1.0))
        return fn.crop(pixels, crop=(CROP, CROP), crop_pos_x=x, crop_pos_y=y), number
    if workload.name == "audio":
        sound, _ = fn.decoders.audio(raw, dtype=types.FLOAT, downmix=True)
        start = fn.random.uniform(range=(0.0, 80_000.0 - HEARD))
        return fn.slice(sound, start=fn.cast(start, dtype=types.INT32), shape=[HEARD], axes=[0]), number
    return fn.reinterpret(raw, dtype=types.FLOAT, shape=VOLUME), number


@pipeline_def
def _python(workload: Workload, plain: Path) -> Any:
    return tuple(fn.external_source(source=_InOrder(Samples(workload, plain)), num_outputs=2, batch=False, parallel=True))


class Loader:
    """A pipeline, and its iterator for torch."""

    def __init__(self, name: str, workload: Workload, plain: Path) -> None:
        self.workload, self.plain = workload, plain

    def __iter__(self) -> Any:
        options = {"batch_size": self.workload.batch, "num_threads": WORKERS, "device_id": None, "prefetch_queue_depth": 2}
        if self.workload.in_files:
            pipeline = _files(self.workload, self.plain, **options)
            batches = DALIGenericIterator([pipeline], ["samples", "numbers"], reader_name="reader")
        else:
            pipeline = _python(self.workload, self.plain, **options, py_num_workers=WORKERS, py_start_method="spawn")
            batches = DALIGenericIterator([pipeline], ["samples", "numbers"], size=self.workload.count)
        for batch in batches:
            yield batch[0]["samples"], batch[0]["numbers"].flatten()

    def close(self) -> None:
        """Nothing is kept."""
