"""Samples of a worker on their way into a batch: recorders become bytes, and what is left to do travels beside the batch.

This holds for plain tuples, lists and dictionaries, which `default_collate` takes apart, and where all samples of a batch
have the same left to do. All others are made real here.
"""

from collections.abc import Callable, Iterator
from typing import Any

from stoker.device.recorder import Recorder, Recording, lies_by_pixel

TAIL = "tail"
"""What a `Made.rest` begins with whose batch has bytes in the place of numbers."""

_CONTAINERS = frozenset({tuple, list, dict})
_DEPTH = 3

Path = tuple[Any, ...]


class Worker:
    """What a worker has recorded for the batch that it makes."""

    def __init__(self) -> None:
        self._mode = Recording()
        self._rest: tuple[Any, ...] | None = None

    def begin(self) -> None:
        """Record in this thread from now on."""
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def take(self) -> tuple[Any, ...] | None:
        """What is left to be done with the batch that was made last."""
        rest, self._rest = self._rest, None
        return rest

    def settle(self, samples: list[Any]) -> list[Any]:
        """Samples without recorders."""
        if type(samples) is not list or not samples:
            return samples
        parts = []
        for path, first in list(_recorders(samples[0], ())):
            leaves = [_at(sample, path) for sample in samples]
            if all(map(_is_like(first), leaves)):
                pictures = [leaf.content.bytes() for leaf in leaves]
                by_pixel = all(map(lies_by_pixel, pictures))
                if by_pixel:
                    pictures = [picture.permute(1, 2, 0) for picture in pictures]
                samples = [_with(sample, path, picture) for sample, picture in zip(samples, pictures, strict=True)]
                parts.append((path, by_pixel, first.ops))
        self._rest = (TAIL, tuple(parts)) if parts else None
        return [_real(sample) for sample in samples]


_worker: Worker | None = None


def begin() -> Worker:
    """Record in this worker process from now on."""
    global _worker
    _worker = Worker()
    _worker.begin()
    return _worker


class Settling:
    """torch's `default_collate` in a worker that records, and by itself elsewhere."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: list[Any]) -> Any:
        """Collate."""
        return self.collate_fn(samples if _worker is None else _worker.settle(samples))


def _recorders(value: Any, path: Path) -> Iterator[tuple[Path, Recorder]]:
    kind = type(value)
    if kind is Recorder:
        if value.made is None and value.ops is not None:
            yield path, value
    elif kind in _CONTAINERS and len(path) < _DEPTH:
        for key, part in value.items() if kind is dict else enumerate(value):
            if kind is not dict or type(key) is str:
                yield from _recorders(part, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        try:
            value = value[key] if type(value) in _CONTAINERS else None
        except (KeyError, IndexError):
            return None
    return value


def _is_like(first: Recorder) -> Callable[[Any], bool]:
    ops, shape = first.ops, first.content.shape

    def is_like(leaf: Any) -> bool:
        return type(leaf) is Recorder and leaf.made is None and leaf.ops == ops and leaf.content.shape == shape

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
    if kind is Recorder:
        return value.made_real()
    if kind is dict:
        return {key: _real(part) for key, part in value.items()}
    return kind(map(_real, value)) if kind in _CONTAINERS else value
