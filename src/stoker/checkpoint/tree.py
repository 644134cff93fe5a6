"""States as JSON: what `state_dict()` returns, taken apart into plain values and leaves, and put together again.

    null, true, 1, 0.5, "text", [..]       themselves
    {"dict": [[key, value], ..]}           a dictionary, in its order; likewise "ordered" and "counter"
    {"tuple": [..]}  {"set": [..]}         {"bytes": base64}  {"complex": [re, im]}
    {"leaf": ..}                           what the caller's `leaf` made of it: tensors and arrays

Only these types exist, so reading a state cannot run any code. A value of another type is refused by name.
"""

import base64
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from stoker.errors import CheckpointError

_SELVES = frozenset({type(None), bool, int, float, str})
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAPPING_OF = {tag: kind for kind, tag in _MAPPINGS.items()}
_SEQUENCE_OF = {tag: kind for kind, tag in _SEQUENCES.items()}


class UnsavableError(CheckpointError):
    """A state has something in it that no checkpoint can hold, so the next one would fail, too."""


def encode(value: Any, leaf: Callable[[Any], Any], where: str) -> Any:
    """Describe a state. `leaf` returns None for what it does not know either."""
    kind = type(value)
    if kind in _SELVES:
        return value
    if kind in _MAPPINGS:
        pairs = [[encode(key, leaf, where), encode(part, leaf, f"{where}[{key!r}]")] for key, part in value.items()]
        return {_MAPPINGS[kind]: pairs}
    if kind is list:
        return [encode(part, leaf, f"{where}[{number}]") for number, part in enumerate(value)]
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [encode(part, leaf, f"{where}[{number}]") for number, part in enumerate(value)]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    encoded = leaf(value)
    if encoded is not None:
        return {"leaf": encoded}
    if isinstance(value, tuple):  # a named one: its names are in the code that reads it
        return encode(tuple(value), leaf, where)
    if isinstance(value, dict):
        return encode(dict(value), leaf, where)
    raise UnsavableError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved: a checkpoint holds tensors, arrays, "
        "numbers, text and containers of these, because nothing in it is ever executed. Leave it out of state_dict(), or "
        "store what is needed to make it again."
    )


def decode(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """Undo `encode`."""
    if type(tree) is list:
        return [decode(part, leaf) for part in tree]
    if type(tree) is not dict:
        return tree
    ((tag, content),) = tree.items()
    if tag == "leaf":
        return leaf(content)
    if tag in _MAPPING_OF:
        return _MAPPING_OF[tag]({decode(key, leaf): decode(part, leaf) for key, part in content})
    if tag in _SEQUENCE_OF:
        return _SEQUENCE_OF[tag](decode(part, leaf) for part in content)
    if tag == "bytes":
        return base64.b64decode(content)
    if tag == "complex":
        return complex(*content)
    raise CheckpointError(f"the checkpoint has something of an unknown kind in it: {tag!r}")
