"""Samples of a worker on their way into a batch: recorders become bytes, and what is left to do travels beside the batch.

This holds for plain tuples, lists and dictionaries, which `default_collate` takes apart, and where all samples of a batch
have the same left to do. All others are made real here. What is left, `Made.rest`, is one of

    ("tail", ((path, colours lie side by side, ops), ...))     the batch has bytes in the place of numbers
    ("device", ((path, shape, ops), ...))                      the batch is (batch, [(files, table), ...]), see `recipe`
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from stoker.device.recipe import row_of_pixels
from stoker.device.recorder import BytesHere, MemoryNotes, Recorder, Recording, lies_by_pixel
from stoker.plan import DEVICE, TAIL

_CONTAINERS = frozenset({tuple, list, dict})
_DEPTH = 3

Path = tuple[Any, ...]


class Worker:
    """What a worker has recorded for the batch that it makes."""

    def __init__(self) -> None:
        self._mode = Recording()
        self._rest: tuple[Any, ...] | None = None
        self._packed: list[Any] = []

    def begin(self, where: str) -> None:
        """Record in this thread from now on."""
        if where == DEVICE:
            from stoker.device import picture  # Pillow is imported where there are to be pictures

            picture.begin()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def take(self) -> tuple[Any, ...] | None:
        """What is left to be done with the batch that was made last."""
        rest, self._rest = self._rest, None
        return rest

    def settle(self, samples: list[Any]) -> list[Any]:
        """Samples without recorders."""
        self._rest, self._packed = None, []  # another batch's, which could not be collated
        if type(samples) is not list or not samples:
            return samples
        parts: list[Any] = []
        for path, first in list(_noted(samples[0], ())):
            leaves = [_at(sample, path) for sample in samples]
            if not all(map(_is_like(first), leaves)):
                continue
            contents = [leaf.notes.content for leaf in leaves]
            if any(type(content) is not BytesHere for content in contents):
                self._packed.append(packed(contents))
                samples = [_with(sample, path, 0) for sample in samples]
                parts.append((path, first.content.shape, first.ops))
            else:
                pictures = [content.bytes() for content in contents]
                by_pixel = all(map(lies_by_pixel, pictures))
                if by_pixel:
                    pictures = [picture.permute(1, 2, 0) for picture in pictures]
                samples = [_with(sample, path, picture) for sample, picture in zip(samples, pictures, strict=True)]
                parts.append((path, by_pixel, first.ops))
        self._rest = (DEVICE if self._packed else TAIL, tuple(parts)) if parts else None
        return [_real(sample) for sample in samples]

    def beside(self, batch: Any) -> Any:
        """A batch with what is packed beside it, if anything is."""
        files, self._packed = self._packed, []
        return (batch, files) if files else batch


_worker: Worker | None = None


def begin(where: str) -> Worker:
    """Record in this worker process from now on, for what the device is to do."""
    global _worker
    _worker = Worker()
    _worker.begin(where)
    return _worker


class Settling:
    """torch's `default_collate` in a worker that records, and by itself elsewhere."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: list[Any]) -> Any:
        """Collate."""
        if _worker is None:
            return self.collate_fn(samples)
        return _worker.beside(self.collate_fn(_worker.settle(samples)))


def _noted(value: Any, path: Path) -> Iterator[tuple[Path, MemoryNotes]]:
    kind = type(value)
    if isinstance(value, Recorder):
        if (notes := value.noted) is not None and notes.ops is not None:
            yield path, notes
    elif kind in _CONTAINERS and len(path) < _DEPTH:
        for key, part in value.items() if kind is dict else enumerate(value):
            if kind is not dict or type(key) is str:
                yield from _noted(part, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        try:
            value = value[key] if type(value) in _CONTAINERS else None
        except (KeyError, IndexError):
            return None
    return value


def _is_like(first: MemoryNotes) -> Callable[[Any], bool]:
    ops, shape = first.ops, first.content.shape

    def is_like(leaf: Any) -> bool:
        notes = leaf.noted if isinstance(leaf, Recorder) else None
        return notes is not None and notes.ops == ops and notes.content.shape == shape

    return is_like


def _with(value: Any, path: Path, leaf: Any) -> Any:
    if not path:
        return leaf
    inner = _with(value[path[0]], path[1:], leaf)
    if type(value) is dict:
        return {**value, path[0]: inner}
    changed = [*value[: path[0]], inner, *value[path[0] + 1 :]]
    return tuple(changed) if type(value) is tuple else changed


def _real(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Recorder):
        return value.made_real()
    if kind is dict:
        return {key: _real(part) for key, part in value.items()}
    return kind(map(_real, value)) if kind in _CONTAINERS else value


def packed(contents: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Files and pixels one after the other, and the table that says what they are."""
    pieces: list[Any] = []
    rows, offset = [], 0
    for content in contents:
        if type(content) is BytesHere:
            pixels = content.bytes().permute(1, 2, 0).contiguous().numpy()
            piece: Any = pixels.reshape(-1)
            rows.append(row_of_pixels(offset, pixels.shape[1], pixels.shape[0], pixels.shape[2]))
        else:
            piece = content.file
            rows.append(content.recipe.row(offset, len(piece)))
        pieces.append(piece)
        offset += len(piece)
    whole = torch.empty(offset, dtype=torch.uint8)
    at, target = 0, whole.numpy()
    for piece in pieces:
        target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return whole, torch.tensor(rows, dtype=torch.int64)
