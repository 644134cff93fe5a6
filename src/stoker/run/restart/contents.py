"""States of streams, datasets and samplers in a checkpoint: what is large in them is saved as it is, and the rest as text.

They may hold anything, so they are pickled. The directory belongs to this user, and what is in it was verified.
"""

import base64
import io
import pickle
from typing import Any

import numpy as np
import torch

_LARGE_BYTES = 64 << 10


class _Pickler(pickle.Pickler):
    """Puts what is large aside."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.large: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        """Where a large value lies."""
        kind = type(value)
        if kind is bytes:
            content = np.frombuffer(value, np.uint8) if len(value) >= _LARGE_BYTES else None
        elif kind is np.ndarray:
            content = None if value.nbytes < _LARGE_BYTES or value.dtype.hasobject or value.dtype.names else value
        elif kind is torch.Tensor:
            is_plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
            content = value if is_plain and not value.requires_grad and value.nbytes >= _LARGE_BYTES else None
        else:
            return None
        if content is None:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.large)
            self.large.append(content)
        return kind.__name__, self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    """Undoes `_Pickler`."""

    def __init__(self, file: io.BytesIO, large: list[Any]) -> None:
        super().__init__(file)
        self._large = large

    def persistent_load(self, place: Any) -> Any:
        """A large value."""
        kind, number = place
        content = self._large[number]
        return content.tobytes() if kind == "bytes" else content


def written(state: dict[str, Any]) -> dict[str, Any]:
    """A loader's state in values that a checkpoint can hold."""
    others = state.get("streams")
    if others is None:
        return state
    pickler = _Pickler(file := io.BytesIO())
    pickler.dump(others)
    return {**state, "streams": {"rest": base64.b64encode(file.getvalue()).decode(), "large": pickler.large}}


def read(state: dict[str, Any]) -> dict[str, Any]:
    """Undo `written`."""
    others = state.get("streams")
    if others is None:
        return state
    return {**state, "streams": _Unpickler(io.BytesIO(base64.b64decode(others["rest"])), others["large"]).load()}
