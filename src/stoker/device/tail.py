"""The end of a picture's preparation: what turns its bytes into numbers, as a list of plain values.

    ops:  (("div", 255), ("sub", ((3, 1, 1), bytes)), ...)     after a conversion to float32

Each operation is done by itself, in its turn, by the same function of torch as in the user's code: so results are those of
the CPU, bit for bit. Nothing here may be fused or compiled. CUDA divides by a number of Python's by multiplying with its
reciprocal, which is another result; so a divisor is a tensor on the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Op = tuple[str, Any]
Ops = tuple[Op, ...]

_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.Tensor.add_,
    "sub": torch.Tensor.sub_,
    "mul": torch.Tensor.mul_,
    "div": torch.Tensor.div_,
}
NAMES = frozenset(_FUNCTIONS)
_operands: dict[tuple[Any, Any], torch.Tensor] = {}
"""They are used on several streams at a time, so none that is here is ever given up."""
_MOST_OPERANDS = 256


def plain_operand(value: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    """A small tensor as plain values."""
    return tuple(value.shape), value.detach().contiguous().numpy().tobytes()


def finish(content: torch.Tensor, ops: Ops, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
    """Numbers of bytes, on the device where the bytes are."""
    return _done(content.to(torch.float32, memory_format=memory_format), ops)


def finish_into(out: torch.Tensor, content: torch.Tensor, ops: Ops) -> None:
    """Numbers of bytes, in memory that is there."""
    _done(out.copy_(content), ops)


def _done(numbers: torch.Tensor, ops: Ops) -> torch.Tensor:
    for name, value in ops:
        _FUNCTIONS[name](numbers, _operand(name, value, numbers.device))
    return numbers


def _operand(name: str, value: Any, device: torch.device) -> Any:
    if type(value) is not tuple and (name != "div" or device.type == "cpu"):
        return value
    key = device, value
    if (found := _operands.get(key)) is None:
        if type(value) is tuple:
            shape, content = value
            found = torch.from_numpy(np.frombuffer(content, np.float32).reshape(shape).copy())
        else:
            found = torch.tensor(value, dtype=torch.float32)
        found = found.to(device)
        if len(_operands) < _MOST_OPERANDS:
            _operands[key] = found
    return found


Finish = Callable[[torch.Tensor, Ops], torch.Tensor]


def finish_batch(batch: Any, parts: Sequence[Any], finish: Finish) -> Any:
    """Finish what parts name in a batch: each is a path of keys, whether colours lie side by side, and operations."""
    for path, by_pixel, ops in parts:
        content = at(batch, path)
        numbers = finish(content.permute(0, 3, 1, 2) if by_pixel else content, ops)
        if not path:
            return numbers
        put_at(batch, path, numbers)
    return batch


def at(batch: Any, path: Sequence[Any]) -> Any:
    """What a path of keys leads to."""
    for key in path:
        batch = batch[key]
    return batch


def put_at(batch: Any, path: Sequence[Any], numbers: torch.Tensor) -> None:
    """Put numbers into the place that a path of keys leads to."""
    at(batch, path[:-1])[path[-1]] = numbers
