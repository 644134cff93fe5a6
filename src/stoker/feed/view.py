"""A loader as torch's iterators see it. Indices are torch's, but taken from the sampler many at a time.

torch asks a sampler for one index after the other. Its `RandomSampler` is a generator that yields from a list, so each
index costs a visit to the generator. While a generator yields from a list, taking from the list is the same.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

_LIST_ITERATOR: type[Any] = type(iter([]))
_TORCHS = "torch.utils.data.sampler"


class LoaderView:
    """A loader as torch's iterators see it, with some attributes replaced, and perhaps with indices from elsewhere."""

    def __init__(self, loader: Any, *, indices: Any = None, **attributes: Any) -> None:
        self._loader = loader
        self.__dict__.update(attributes)
        sampler = loader._index_sampler if indices is None else indices
        self._index_sampler = IndexBatches(sampler) if type(sampler) is BatchSampler else sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def seeds_of(loader: Any) -> dict[str, torch.Generator]:
    """Where the workers' seed is drawn from: a copy of the generator where the epoch, as it began, drew none from it."""
    if loader._draws_seed:
        return {}
    copied = torch.Generator()
    copied.set_state((torch.default_generator if loader.generator is None else loader.generator).get_state())
    return {"generator": copied}


class IndexBatches:
    """A `BatchSampler` of torch's, iterated faster."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        is_torchs = getattr(BatchSampler.__iter__, "__module__", "") == _TORCHS  # somebody may have replaced it
        return self._batches() if is_torchs else iter(self._sampler)

    def _batches(self) -> Iterator[list[Any]]:
        sampler = self._sampler
        indices, size, drops_last = iter(sampler.sampler), sampler.batch_size, sampler.drop_last
        while batch := take(indices, size):
            if drops_last and len(batch) < size:
                return
            yield batch
            if not drops_last:
                size = sampler.batch_size  # torch looks again, too: a user may change it within an epoch


def take(indices: Iterator[Any], count: int) -> list[Any]:
    """The next indices, fewer at the end."""
    listed: Any = getattr(indices, "gi_yieldfrom", None)
    batch = list(islice(listed, count)) if type(listed) is _LIST_ITERATOR else []
    return batch if len(batch) == count else [*batch, *islice(indices, count - len(batch))]
