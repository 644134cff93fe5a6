"""A batch that can be given to the training loop again and again, fresh each time, even if the script changes it.

Scripts pop labels out of batches, and change tensors in place. So a batch is kept in two parts: its tensors, and everything
around them as a pickle, of any classes. A fresh batch is put together from copies. To move it to a device, its tensors are
moved, so its classes need no `.to()`.
"""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

from stoker.errors import CommandError

Tensors = list[torch.Tensor]


class KeptBatch:
    """One batch."""

    def __init__(self, batch: Any) -> None:
        self._tensors: Tensors = []
        self._frame: bytes | None = None
        self._whole: Any = None
        try:
            self._frame = _frame_of(batch, self._tensors)
        except Exception:  # a class of its own inside a function, a lambda: what cannot be pickled may still be copied
            self._tensors.clear()
            try:
                self._whole = copy.deepcopy(batch)
            except Exception as error:
                raise CommandError(f"a batch of the training loader cannot be copied: {error}") from error

    def fresh(self) -> Any:
        """The batch as it was, in tensors of its own."""
        if self._frame is None:
            return copy.deepcopy(self._whole)
        return _filled(self._frame, [_copied(tensor) for tensor in self._tensors])

    def on(self, device: torch.device | None) -> "KeptBatch | None":
        """The same batch on a device; None if not all of it can be brought there."""
        if device is None:
            return self
        if self._frame is None:
            return None
        moved = copy.copy(self)
        moved._tensors = [tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in self._tensors]
        return moved

    @property
    def kinds(self) -> tuple[tuple[torch.dtype, int], ...]:
        """Type and number of dimensions of each tensor: what two loaders of the same task have in common."""
        return tuple((tensor.dtype, tensor.dim()) for tensor in self._tensors)

    @property
    def samples(self) -> int:
        """How many samples it has, as far as its first tensor tells."""
        return next((len(tensor) for tensor in self._tensors if tensor.dim()), 1)


class _Taking(pickle.Pickler):
    """Leaves tensors out, and copies each into a list."""

    def __init__(self, file: io.BytesIO, tensors: Tensors) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._taken = tensors
        self._numbers: dict[int, int] = {}
        self._seen: Tensors = []  # so that no other object gets the id of one

    def persistent_id(self, thing: Any) -> int | None:
        """The number of a tensor. A tensor that occurs several times in a batch has one number."""
        if not isinstance(thing, torch.Tensor):
            return None
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._taken)
            self._seen.append(thing)
            self._taken.append(_copied(thing))
        return self._numbers[id(thing)]


class _Filling(pickle.Unpickler):
    persistent_load: Callable[[Any], Any]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _frame_of(batch: Any, tensors: Tensors) -> bytes:
    file = io.BytesIO()
    _Taking(file, tensors).dump(batch)
    return file.getvalue()


def _filled(frame: bytes, tensors: Tensors) -> Any:
    filling = _Filling(io.BytesIO(frame))
    filling.persistent_load = tensors.__getitem__
    return filling.load()
