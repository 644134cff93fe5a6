"""SPDL: a pipeline of threads that prepare a batch each; of processes where preparing is Python, as its guide advises.

Its own decoders need the libraries of FFmpeg, which pip has not; it decodes with what the others use.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spdl.pipeline import PipelineBuilder

from contenders.payloads import Payloads, Workload

WORKERS = 2
_payloads: dict[str, Payloads] = {}


def batch(workload: Workload, folder: str, numbers: list[int]) -> tuple[Any, Any]:
    """Read, prepare and stack some samples."""
    if folder not in _payloads:
        _payloads[folder] = Payloads(workload, Path(folder))
    return np.stack([workload.prepare(_payloads[folder].read(number)) for number in numbers]), numbers


class Loader:
    """A pipeline for each epoch."""

    def __init__(self, name: str, workload: Workload, plain: Path) -> None:
        self.workload, self.folder = workload, str(plain)

    def _orders(self) -> Any:
        order = np.random.permutation(self.workload.count)
        return (chunk.tolist() for chunk in np.split(order, self.workload.count // self.workload.batch))

    def __iter__(self) -> Any:
        executor = ProcessPoolExecutor(WORKERS) if self.workload.name == "text" else None
        builder = PipelineBuilder().add_source(self._orders())
        builder = builder.pipe(_Batch(self.workload, self.folder), concurrency=WORKERS, executor=executor).add_sink(
            2 * WORKERS
        )
        pipeline = builder.build(num_threads=WORKERS)
        with pipeline.auto_stop():
            for samples, numbers in pipeline:
                yield torch.from_numpy(samples), torch.tensor(numbers)
        if executor is not None:
            executor.shutdown()

    def close(self) -> None:
        """Nothing is kept."""


class _Batch:
    """`batch` of one workload, in a form that can be sent to processes."""

    def __init__(self, workload: Workload, folder: str) -> None:
        self.workload, self.folder = workload, folder

    def __call__(self, numbers: list[int]) -> tuple[Any, Any]:
        return batch(self.workload, self.folder, numbers)
