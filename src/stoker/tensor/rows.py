"""Samples go straight into their rows of a batch, one by one, instead of waiting until all of them are there.

A large sample is copied while it is still in the processor's cache, and its memory is used again for the next sample.
Threads gain most, because they share one allocator. The first sample tells where every row lies, so several workers can
fill one batch. Only what `default_collate` would stack is taken: plain tensors, plain arrays, ints and floats, alone or
in one tuple, list or dictionary. Everything else, and every sample that is unlike the first, is left to torch.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from stoker.slots.outbox import Outbox
from stoker.tensor.leaves import TORCH_DTYPE, is_plain, tensor_over

_LARGE_BYTES = 32 << 10
"""Smaller samples are collated faster all at once."""

_NUMBERS: dict[type, Any] = {int: np.int64, float: np.float64}


class Column:
    """One leaf of all samples: a tensor, an array or a number of each."""

    __slots__ = ("dtype", "kind", "nbytes", "out", "rows", "shape")

    def __init__(self, leaf: Any) -> None:
        self.kind = type(leaf)
        if self.kind in _NUMBERS:
            self.dtype, self.shape, self.nbytes = np.dtype(_NUMBERS[self.kind]), (), 8
        else:
            self.dtype, self.shape, self.nbytes = leaf.dtype, tuple(leaf.shape), leaf.nbytes

    def place(self, outbox: Outbox, own: range, total: int) -> None:
        """Take room for all samples; only this worker's rows will be written here."""
        _, room = outbox.room(self.nbytes * total, (self.nbytes * own.start, self.nbytes * own.stop))
        dtype = self.dtype if self.kind is torch.Tensor else TORCH_DTYPE[self.dtype]
        self.out = tensor_over(room, dtype, (total, *self.shape))
        self.rows: Any = self.out if self.kind is torch.Tensor else self.out.numpy()

    def put(self, row: int, leaf: Any) -> bool:
        """Copy a leaf into its row. False if it is unlike the first."""
        if type(leaf) is not self.kind:
            return False
        if self.kind in _NUMBERS:
            try:
                self.rows[row] = leaf
            except OverflowError:
                return False
            return True
        if leaf.dtype != self.dtype or leaf.shape != self.shape or not _can_stack(leaf):
            return False
        self.rows[row] = leaf
        return True

    def leaf(self, row: int) -> Any:
        """Read back a leaf that was put into a row."""
        if self.kind in _NUMBERS:
            return self.kind(self.rows[row])
        return self.rows[row].clone() if self.kind is torch.Tensor else self.rows[row].copy()


def _can_stack(leaf: Any) -> bool:
    if type(leaf) is np.ndarray:
        return leaf.dtype in TORCH_DTYPE and leaf.size > 0 and min(leaf.strides, default=0) >= 0
    if type(leaf) is torch.Tensor:
        return is_plain(leaf) and leaf.nbytes > 0 and not (leaf.requires_grad or leaf.is_conj() or leaf.is_neg())
    return type(leaf) in _NUMBERS


class Rows:
    """A batch that is being filled row by row."""

    __slots__ = ("columns", "keys", "kind")

    def __init__(self, sample: Any, columns: list[Column]) -> None:
        self.kind = type(sample)
        self.keys = list(sample) if self.kind is dict else None
        self.columns = columns

    def leaves(self, sample: Any) -> Sequence[Any] | None:
        """The leaves of a sample in the order of columns; None if it is unlike the first."""
        if type(sample) is not self.kind:
            return None
        if self.kind is dict:
            return list(sample.values()) if list(sample) == self.keys else None
        if self.kind in (tuple, list):
            return sample if len(sample) == len(self.columns) else None
        return (sample,)

    def put(self, row: int, sample: Any) -> bool:
        """Copy a sample into its row. False if it is unlike the first: then the whole batch is left to torch."""
        leaves = self.leaves(sample)
        return leaves is not None and all(column.put(row, leaf) for column, leaf in zip(self.columns, leaves, strict=True))

    def batch(self) -> Any:
        """What `default_collate` would have made of the samples."""
        return self._whole([column.out for column in self.columns], list)

    def samples(self, rows: range) -> list[Any]:
        """Read back the samples that were put into some rows."""
        return [self._whole([column.leaf(row) for column in self.columns], self.kind) for row in rows]

    def _whole(self, parts: list[Any], sequence: type) -> Any:
        if self.kind is dict:
            assert self.keys is not None
            return dict(zip(self.keys, parts, strict=True))
        return sequence(parts) if self.kind in (tuple, list) else parts[0]


def rows_for(sample: Any) -> Rows | None:
    """Rows for samples like this one, if it is of a kind that can be stacked. They have no place yet."""
    kind = type(sample)
    if kind is dict and not all(type(key) is str for key in sample):
        return None
    leaves = sample.values() if kind is dict else sample if kind in (tuple, list) else (sample,)
    if not leaves or not all(map(_can_stack, leaves)):
        return None
    return Rows(sample, [Column(leaf) for leaf in leaves])


def are_large(sample: Any) -> bool:
    """Whether samples like this one are worth a row each."""
    rows = rows_for(sample)
    return rows is not None and sum(column.nbytes for column in rows.columns) >= _LARGE_BYTES


def stack(samples: Iterable[Any], own: range, total: int, outbox: Outbox, collate: Callable[[list[Any]], Any]) -> Any:
    """Put samples into this worker's rows of a batch of `total`; or collate them the usual way if they cannot be rows."""
    samples = iter(samples)
    first = list(itertools.islice(samples, 1))
    rows = rows_for(first[0]) if first else None
    if rows is None:
        return collate([*first, *samples])
    used = outbox.used
    for column in rows.columns:
        column.place(outbox, own, total)
    row, rest = own.start, itertools.chain(first, samples)
    for sample in rest:
        if row == own.stop or not rows.put(row, sample):
            rest = itertools.chain([sample], rest)
            break
        row += 1
    else:
        if row == own.stop:
            return rows.batch()
    # Some sample is unlike the first, or `__getitems__` has given more or fewer than it was asked for.
    whole = [*rows.samples(range(own.start, row)), *rest]
    del rows, column
    outbox.rewind(used)
    return collate(whole)
