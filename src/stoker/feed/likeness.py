"""What a loader is made of, in plain values: jobs that share batches must agree on it, and be told where they do not.

Objects are described by their class and attributes, functions by their name and code, long lists and arrays by a digest.
If something in a dataset differs from job to job and does not matter, the dataset can describe itself: by a method
`__likeness__()` that returns plain values.
"""

import hashlib
import os
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import numpy as np
import torch

_DEPTH = 6
_MOST = 400
_LONG_TEXT = 120
_LISTED = 12
_SAMPLED = 256
_SAMPLED_BYTES = 1 << 24
_PLAIN = (bool, int, float, complex, type(None))


def describe(thing: Any, name: str, known: AbstractSet[int] = frozenset()) -> dict[str, str]:
    """A description of something: short texts under names that say where they were found. `known` are ids of objects."""
    found: dict[str, str] = {}
    _describe(thing, name, found, _DEPTH, set(known))
    return found


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Where two descriptions differ, in words, the most telling first."""
    words = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        mine, other = ours.get(name), theirs.get(name)
        if mine != other:
            words.append(f"{name} is {_or_missing(mine)} here and {_or_missing(other)} in the group")
    return words[:4] + ([f"and {len(words) - 4} more differ"] if len(words) > 4 else [])


def _or_missing(text: str | None) -> str:
    return "missing" if text is None else text


def _describe(thing: Any, name: str, found: dict[str, str], depth: int, above: set[int]) -> None:
    if len(found) >= _MOST:
        return
    if id(thing) in above or depth < 0:
        found[name] = _kind(thing)
        return
    above = above | {id(thing)}
    text = _leaf(thing)
    if text is not None:
        found[name] = text
    elif isinstance(thing, partial):
        _describe((thing.func, thing.args, thing.keywords), name, found, depth, above)
    elif isinstance(thing, types.MethodType):
        _describe(thing.__func__, name, found, depth, above)
        _describe(thing.__self__, f"{name}.__self__", found, depth - 1, above)
    elif isinstance(thing, types.FunctionType):
        found[name] = f"{thing.__module__}.{thing.__qualname__} ({_code(thing.__code__)})"
        for number, cell in enumerate(thing.__closure__ or ()):
            _describe(_content(cell), f"{name}.{thing.__code__.co_freevars[number]}", found, depth - 1, above)
        for number, value in enumerate(thing.__defaults__ or ()):
            _describe(value, f"{name}.default{number}", found, depth - 1, above)
    elif isinstance(thing, Mapping):
        _describe_mapping(thing, name, found, depth, above)
    elif isinstance(thing, AbstractSet):
        found[name] = f"{_kind(thing)} of {len(thing)} ({_digest(sorted(_short(part) for part in thing))})"
    elif isinstance(thing, Sequence):
        _describe_sequence(thing, name, found, depth, above)
    else:
        _describe_object(thing, name, found, depth, above)


def _describe_mapping(thing: Mapping[Any, Any], name: str, found: dict[str, str], depth: int, above: set[int]) -> None:
    if len(thing) > _LISTED:
        found[name] = f"{_kind(thing)} of {len(thing)} ({_digest(_sampled(list(thing.items())))})"
        return
    for key, value in thing.items():
        _describe(value, f"{name}[{_short(key)}]", found, depth - 1, above)


def _describe_sequence(thing: Sequence[Any], name: str, found: dict[str, str], depth: int, above: set[int]) -> None:
    if len(thing) > _LISTED:
        found[name] = f"{_kind(thing)} of {len(thing)} ({_digest(_sampled(thing))})"
        return
    found[name] = f"{_kind(thing)} of {len(thing)}"
    for number in range(len(thing)):
        _describe(thing[number], f"{name}[{number}]", found, depth - 1, above)


def _describe_object(thing: Any, name: str, found: dict[str, str], depth: int, above: set[int]) -> None:
    found[name] = _kind(thing)
    own = getattr(thing, "__likeness__", None)
    if callable(own):
        _describe(own(), f"{name}.__likeness__", found, depth - 1, above)
        return
    for attribute, value in sorted(_attributes(thing).items()):
        _describe(value, f"{name}.{attribute}", found, depth - 1, above)


def _attributes(thing: Any) -> dict[str, Any]:
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(thing, slot):
                found[slot] = getattr(thing, slot)
    return found


def _leaf(thing: Any) -> str | None:
    """A short text for what has no parts worth a name."""
    if isinstance(thing, _PLAIN):
        return repr(thing)
    if isinstance(thing, str | bytes | os.PathLike):
        return _short(thing)
    if isinstance(thing, torch.Tensor):
        return _array(thing.detach().cpu().numpy(), thing) if thing.layout is torch.strided else _kind(thing)
    if isinstance(thing, np.ndarray):
        return _array(thing, thing)
    if isinstance(thing, np.generic | torch.dtype | torch.device | np.dtype | range | slice):
        return repr(thing)
    if isinstance(thing, type):
        return f"{thing.__module__}.{thing.__qualname__}"
    if isinstance(thing, types.BuiltinFunctionType | types.ModuleType):
        return str(thing.__name__)
    return None


def _short(thing: Any) -> str:
    if isinstance(thing, os.PathLike):
        thing = os.fspath(thing)
    text = repr(thing) if isinstance(thing, (*_PLAIN, str, bytes)) else (_leaf(thing) or _kind(thing))
    return text if len(text) <= _LONG_TEXT else f"{text[:_LONG_TEXT]}... ({_digest([text])})"


def _sampled(parts: Sequence[Any]) -> list[str]:
    """Some elements of a long list, in a few words each; objects without a short text count by their kind."""
    step = max(1, len(parts) // _SAMPLED)
    return [_part(parts[number]) for number in range(0, len(parts), step)] + [_part(parts[-1])]


def _part(part: Any) -> str:
    if isinstance(part, tuple | list) and len(part) <= _LISTED:
        return f"({', '.join(map(_part, part))})"
    return _short(part)


def _array(array: np.ndarray[Any, Any], thing: Any) -> str:
    if array.dtype.hasobject:
        return f"{_kind(thing)} {array.dtype} {array.shape}"
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flatten()
    if flat.nbytes > _SAMPLED_BYTES:
        flat = flat[:: flat.nbytes // _SAMPLED_BYTES + 1]
    digest = hashlib.blake2b(np.ascontiguousarray(flat).tobytes(), digest_size=6).hexdigest()
    values = f" {array.tolist()}" if array.size <= 4 else ""
    return f"{_kind(thing)} {array.dtype} {tuple(array.shape)}{values} ({digest})"


def _code(code: types.CodeType) -> str:
    return _digest(_code_parts(code))


def _code_parts(code: types.CodeType) -> list[str]:
    parts = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        parts += _code_parts(constant) if isinstance(constant, types.CodeType) else [_short(constant)]
    return parts


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _kind(thing: Any) -> str:
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
