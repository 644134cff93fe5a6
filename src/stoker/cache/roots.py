"""The folders of a dataset's files, as far as its attributes tell. A cache belongs to these folders.

A dataset usually keeps a folder, or a list of paths, in an attribute. The search is cheap: one level of attributes, a few
elements of each list, and the datasets that it wraps.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_ELEMENTS = 16
_DEPTH = 3


def roots_of(dataset: Any) -> tuple[str, ...]:
    """The folders that a dataset's paths are in, none within another; ("/",) if it names no path."""
    folders = sorted({os.path.abspath(folder) for folder in _folders(dataset, _DEPTH)})
    roots: list[str] = []
    for folder in folders:
        if folder != os.sep and not any(folder.startswith(os.path.join(root, "")) for root in roots):
            roots.append(folder)
    return tuple(roots) or (os.sep,)


def _folders(thing: Any, depth: int) -> Iterator[str]:
    for value in list(getattr(thing, "__dict__", {}).values()):
        paths = list(_paths(value, _DEPTH))
        if paths:
            yield from _common(paths)
        elif depth and hasattr(value, "__getitem__") and hasattr(value, "__dict__") and not isinstance(value, type):
            yield from _folders(value, depth - 1)
        elif depth and isinstance(value, list | tuple):
            for element in value[:_ELEMENTS]:
                if hasattr(element, "__getitem__") and hasattr(element, "__dict__"):
                    yield from _folders(element, depth - 1)


def _paths(value: Any, depth: int) -> Iterator[str]:
    """Paths that exist, in a value or in some of its elements."""
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and 0 < len(text) < 4096 and "\0" not in text and os.path.exists(text):
            yield text
    elif depth:
        for element in _some(value):
            yield from _paths(element, depth - 1)


def _some(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())[:_ELEMENTS]
    if isinstance(value, Sequence) or (type(value).__name__ == "ndarray" and value.ndim == 1 and value.dtype.kind in "OUS"):
        step = max(1, len(value) // _ELEMENTS)
        return [*value[::step][:_ELEMENTS], *value[-1:]]
    return ()


def _common(paths: list[str]) -> Iterator[str]:
    """The folders of some paths: the paths that are folders, and the common folder of all files."""
    yield from (path for path in paths if os.path.isdir(path))
    files = [os.path.dirname(os.path.abspath(path)) for path in paths if not os.path.isdir(path)]
    if files:
        yield os.path.commonpath(files)
