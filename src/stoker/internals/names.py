"""The private names of torch's data loading: they are imported here, under names of ours, and nowhere else.

Each says why it is needed. `expected.py` says what must be true of them. A torch that lacks one cannot import this module,
so only what works without our iterators may be imported before `expected.difference()` was asked.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.utils.data.dataloader as _dataloader
from torch._utils import ExceptionWrapper as _ExceptionWrapper
from torch.utils.data._utils import collate as _collate
from torch.utils.data._utils import pin_memory as _pin_memory
from torch.utils.data._utils import signal_handling as _signal_handling
from torch.utils.data._utils import worker as _worker

from stoker.errors import ConfigError

Loader = _dataloader.DataLoader
"""Asks `_get_iterator` for its iterators, where ours steps in."""
BaseIterator = _dataloader._BaseDataLoaderIter
"""Users and frameworks ask an iterator whether it is one of these: the group's is."""
InlineIterator = _dataloader._SingleProcessDataLoaderIter
"""`num_workers=0`: order, fetching and errors are torch's."""
WorkersIterator = _dataloader._MultiProcessingDataLoaderIter
"""`num_workers>0`: who gets which batch, in which order they come back, errors and shutdown are torch's."""
worker_loop: Callable[..., None] = _worker._worker_loop
"""What runs in a worker process, and what threads do instead."""
DatasetKind = _dataloader._DatasetKind
"""Makes the fetcher that threads use, as torch's worker loop does."""
StreamEnded = _worker._IterableDatasetStopIteration
"""How a worker tells torch's iterator that its part of a stream is over."""
ResumeIteration = _worker._ResumeIteration
"""How torch's iterator tells persistent workers that an epoch begins."""
WorkerInfo = _worker.WorkerInfo
"""What `get_worker_info()` gives in workers that torch did not start."""
ExceptionWrapper = _ExceptionWrapper
"""How a worker's exception travels, so that users see the type and the words that torch would show."""
pin_memory: Callable[..., Any] = _pin_memory.pin_memory
"""Page-locks whatever a batch is made of, as torch's pinning thread does."""
set_worker_signal_handlers: Callable[[], None] = _signal_handling._set_worker_signal_handlers  # type: ignore[attr-defined]
"""Has a worker of a group say on stderr that it was killed for lack of shared memory, as torch's workers do."""
profiler_enabled: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Whether somebody profiles: only then does a batch need a range in the profile, a tenth of what a small batch costs."""

collate: Callable[..., Any] = _collate.collate
"""Collates with some functions of ours in torch's map."""
collations: dict[Any, Any] = _collate.default_collate_fn_map
"""Where users add functions for kinds of their own, and workers of ours those that stack into a slot."""
collate_tensors: Callable[..., Any] = _collate.collate_tensor_fn
"""What torch's map has for tensors: where a user has put something else it is left alone; what ours cannot do goes here."""
collate_arrays: Callable[..., Any] = _collate.collate_numpy_array_fn
"""The same for arrays of NumPy."""
collate_ints: Callable[..., Any] = _collate.collate_int_fn
"""The same for whole numbers."""
collate_floats: Callable[..., Any] = _collate.collate_float_fn
"""The same for other numbers."""
collate_globals: dict[str, Any] = vars(_collate)
"""By these a caller of `get_worker_info()` is known to be torch's collation."""

worker_globals: dict[str, Any] = vars(_worker)
"""Where torch keeps its answer to `get_worker_info()`; see `worker_info.py`."""


def look_for_parent_every(seconds: float) -> None:
    """In a worker: how often torch's loop wakes up to see whether the training process lives. A watch of ours does not."""
    _worker.MP_STATUS_CHECK_INTERVAL = seconds  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """What torch's iterator tells its workers, as far as a thread needs it, in the words of torch's worker loop."""

    dataset_kind: Any
    dataset: Any
    index_queue: Any
    data_queue: Any
    done_event: Any
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    base_seed: int
    init_fn: Callable[[int], Any] | None
    worker_id: int
    num_workers: int


def read_call(target: Callable[..., None], args: tuple[Any, ...]) -> WorkerCall:
    """The arguments of torch's worker loop, whose parameters differ between versions."""
    given = inspect.signature(target).bind(*args).arguments
    if "dataset_holder" in given:  # since torch 2.15: a list, from which the worker takes the dataset
        given["dataset"] = given["dataset_holder"].pop()
    try:
        return WorkerCall(*(given[field.name] for field in fields(WorkerCall)))
    except KeyError as missing:
        raise ConfigError(
            f"workers='threads' does not fit torch {torch.__version__}, whose workers are not told {missing}: "
            "use workers='processes', or an earlier torch"
        ) from None
