"""The private names of torch's data loading: they are imported here, under names of ours, and nowhere else.

Each says why it is needed. `expected.py` says what must be true of them. A torch that lacks one cannot import this module,
so only what works without our iterators may be imported before `expected.difference()` was asked.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataloader as _dataloader
from torch._utils import ExceptionWrapper as _ExceptionWrapper
from torch.utils.data._utils import collate as _collate
from torch.utils.data._utils import pin_memory as _pin_memory
from torch.utils.data._utils import signal_handling as _signal_handling
from torch.utils.data._utils import worker as _worker

Loader = _dataloader.DataLoader
"""Asks `_get_iterator` for its iterators, where ours steps in."""
BaseIterator = _dataloader._BaseDataLoaderIter
"""Users and frameworks ask an iterator whether it is one of these: the group's is."""
InlineIterator = _dataloader._SingleProcessDataLoaderIter
"""`num_workers=0`: order, fetching and errors are torch's."""
WorkersIterator = _dataloader._MultiProcessingDataLoaderIter
"""`num_workers>0`: who gets which batch, in which order they come back, errors and shutdown are torch's."""
worker_loop: Callable[..., None] = _worker._worker_loop
"""What runs in a worker process without a seed."""
DatasetKind = _dataloader._DatasetKind
"""Makes the fetcher that threads use, as torch's worker loop does."""
WorkerInfo = _worker.WorkerInfo
"""What `get_worker_info()` gives in workers that torch did not start."""
ExceptionWrapper = _ExceptionWrapper
"""How a worker's exception travels, so that users see the type and the words that torch would show."""
pin_memory: Callable[..., Any] = _pin_memory.pin_memory
"""Page-locks all tensors of a batch, as torch's pinning thread does."""
worker_generator_state: Callable[[int, int], Any] = _worker._generate_state
"""Seeds NumPy's generator in a worker as torch does."""
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


def create_fetchers_by(create: Callable[..., Any]) -> None:
    """In a worker: from now on `create` is asked for fetchers, with torch's function before the arguments."""
    make = DatasetKind.create_fetcher
    DatasetKind.create_fetcher = staticmethod(lambda *arguments: create(make, *arguments))  # type: ignore[method-assign]


def look_for_parent_every(seconds: float) -> None:
    """In a worker: set how often torch's loop wakes up to see whether the training process lives. Our watch needs none."""
    _worker.MP_STATUS_CHECK_INTERVAL = seconds  # type: ignore[attr-defined]
