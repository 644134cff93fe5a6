"""Which file, or which range of one, each sample of a dataset is in, as far as its attributes tell.

torchvision's folders keep `samples`, a list of (path, class); others keep a list of paths as long as the dataset. Parts
and chains of such datasets are followed. Nothing is opened, and no sample is asked for. What is found may be wrong (a
dataset need not open what it lists): that costs some reads, and shows after a few batches (`keeper/queues`).
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from stoker.keeper.table import range_entry
from stoker.source.files import Files
from stoker.source.tar import TarShards
from stoker.tensor.dataset import Dataset

_FIRST = ("samples", "imgs")
_DEPTH = 8


def paths_of(dataset: Any, depth: int = _DEPTH) -> Sequence[str] | None:
    """The path of each sample, by index; None if it is not known."""
    if not depth:
        return None
    if isinstance(dataset, Dataset):
        return _of_source(dataset.source)
    if type(dataset) is Subset:
        inner = paths_of(dataset.dataset, depth - 1)
        return None if inner is None else _some(inner, dataset.indices)
    if type(dataset) is ConcatDataset:
        parts = [paths_of(part, depth - 1) for part in dataset.datasets]
        return None if any(part is None for part in parts) else [path for part in parts for path in part or ()]
    length = _length(dataset)
    if not length:
        return None
    attributes = dict(getattr(dataset, "__dict__", {}))
    known = [attributes.pop(name) for name in _FIRST if name in attributes]
    for value in (*known, *attributes.values()):
        found = _listed(value, length)
        if found is not None:
            return found
    wrapped = attributes.get("dataset")
    return paths_of(wrapped, depth - 1) if wrapped is not None and _length(wrapped) == length else None


def _of_source(source: Any) -> Sequence[str] | None:
    if type(source) is Files:
        return source.paths[:]
    if type(source) is TarShards:
        return [range_entry(path, offset, length, stamp.version) for path, offset, length, stamp in source.ranges()]
    return None


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception:  # of the user's
        return 0


def _some(paths: Sequence[str], indices: Any) -> list[str] | None:
    try:
        return [paths[index] for index in indices]
    except (IndexError, TypeError):
        return None


def _listed(value: Any, length: int) -> list[str] | None:
    """A list of paths, or of tuples that begin with one."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.ndim == 1 and value.dtype.kind in "OUS" and len(value) == length else None
    if not isinstance(value, list | tuple) or len(value) != length:
        return None
    if not all(_is_path(_first(value[number])) for number in {0, length // 2, length - 1}):
        return None
    try:
        paths = [element[0] for element in value] if isinstance(value[0], tuple | list) else list(value)
        if set(map(type, paths)) != {str}:
            paths = [os.fsdecode(path) for path in paths]
        return paths if all(path[:1] == "/" for path in paths) else [os.path.abspath(path) for path in paths]
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _first(element: Any) -> Any:
    return element[0] if isinstance(element, tuple | list) and element else element


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.path.isfile(value)
