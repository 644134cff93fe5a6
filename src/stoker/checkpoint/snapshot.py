"""Turns the state of a training run into a document and pieces of memory, and back.

Tensors that only an optimizer's `step` changes may be copied while the next forward and backward run, because `step` waits
for the copy. These are the parameters in the groups of the given optimizers, and the optimizers' own state. Everything else
(BatchNorm's statistics, moving averages, generators, schedulers, the loader) is copied at once.
"""

import base64
import json
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from stoker.checkpoint.files import NONSENSE
from stoker.checkpoint.tree import UnsavableError, decode, encode
from stoker.errors import CheckpointError
from stoker.internals.tensors import is_made_of_tensors, version_of

_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class SavedTensor:
    """A tensor that a piece is copied from."""

    __slots__ = ("is_later", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, is_later: bool) -> None:
        self.tensor = tensor
        self.is_later = is_later
        self.version = version_of(tensor) if not tensor.is_inference() else 0

    def has_changed(self) -> bool:
        """Whether the tensor was written to since it was gathered."""
        return not self.tensor.is_inference() and version_of(self.tensor) != self.version


class Gathered:
    """A state, taken apart: the document, and what its pieces are copied from."""

    def __init__(self, later: set[int]) -> None:
        self.document: Any = None
        self.sources: list[SavedTensor] = []
        self._later = later
        self._numbers: dict[Any, int] = {}
        self._described: list[dict[str, Any]] = []
        self._kept: list[Any] = []

    @property
    def lengths(self) -> list[int]:
        """The length of each piece."""
        return [source.tensor.nbytes for source in self.sources]

    def leaf(self, value: Any) -> Any:
        """Describe a tensor, an array or a similar value; None for anything else."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.hasobject or value.dtype.names:
                return None
            array = np.ascontiguousarray(value)
            self._kept.append(array)
            content = (
                torch.from_numpy(array.reshape(-1).view(np.uint8)) if array.nbytes else torch.empty(0, dtype=torch.uint8)
            )
            kind = "array" if isinstance(value, np.ndarray) else "number"
            described = {"kind": kind, "dtype": array.dtype.str, "shape": list(np.shape(value))}
            return self._with_piece(described, content, False)
        if isinstance(value, torch.dtype):
            return {"kind": "dtype", "name": _DTYPE_NAMES[value]}
        if isinstance(value, torch.Size):
            return {"kind": "size", "shape": list(value)}
        if isinstance(value, torch.device):
            return {"kind": "device", "name": str(value)}
        return None

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if is_made_of_tensors(tensor):
            raise UnsavableError(
                f"a {type(tensor).__name__} cannot be saved here: sharded states go to "
                "stoker.checkpoint.sharded.ShardedCheckpoints"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return None
        tensor = tensor.detach()
        shape, stride = list(tensor.shape), list(tensor.stride())
        described: dict[str, Any] = {"kind": "tensor", "dtype": _DTYPE_NAMES[tensor.dtype], "shape": shape}
        if not tensor.is_contiguous():
            order = sorted(range(tensor.dim()), key=lambda axis: stride[axis], reverse=True)
            if tensor.permute(order).is_contiguous():
                tensor, described["stride"] = tensor.permute(order), stride
            else:
                tensor = tensor.contiguous()
                self._kept.append(tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        return self._with_piece(described, tensor, tensor.untyped_storage().data_ptr() in self._later)

    def _with_piece(self, described: dict[str, Any], tensor: torch.Tensor, is_later: bool) -> dict[str, Any]:
        # Tensors that share memory (tied weights) are one piece. Empty ones have no address to compare.
        key = (
            (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.nbytes else len(self.sources)
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.sources)
            self.sources.append(SavedTensor(tensor, is_later))
        described["piece"] = number
        self._described.append(described)
        return described

    def sort(self) -> None:
        """Put together what is on the same device, so that it can be copied in one go."""
        order = sorted(range(len(self.sources)), key=lambda number: -1 - self.sources[number].tensor.get_device())
        places = {number: place for place, number in enumerate(order)}
        self.sources = [self.sources[number] for number in order]
        for described in self._described:
            described["piece"] = places[described["piece"]]


def changed_by_optimizers_only(stateful: Mapping[str, Any]) -> set[int]:
    """The storages that may be copied while the next forward and backward run."""
    optimizers = [part for part in stateful.values() if isinstance(part, torch.optim.Optimizer)]
    storages: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            storages.update(parameter.untyped_storage().data_ptr() for parameter in group["params"])
        for state in optimizer.state.values():
            if isinstance(state, dict):
                storages.update(v.untyped_storage().data_ptr() for v in state.values() if type(v) is torch.Tensor)
    return storages


def gather(stateful: Mapping[str, Any], extra: Mapping[str, Any], *, later: Iterable[int] = ()) -> Gathered:
    """Take apart the states of some objects, and some more values."""
    gathered = Gathered(set(later))
    document = {name: encode(_state_of(name, part), gathered.leaf, name) for name, part in stateful.items()}
    gathered.document = {"stateful": document, "extra": encode(dict(extra), gathered.leaf, "extra")}
    gathered.sort()
    return gathered


def _state_of(name: str, part: Any) -> Any:
    state = part.state_dict()
    if state is None:
        raise CheckpointError(f"{name}.state_dict() returned None")
    return state


class Pieces:
    """Makes values of the contents of pieces again. Tensors that shared memory share it again."""

    def __init__(self, contents: list[bytearray]) -> None:
        self.contents = contents
        self._made: dict[Any, torch.Tensor] = {}

    def leaf(self, described: dict[str, Any]) -> Any:
        """The value of a description."""
        kind = described["kind"]
        if kind == "dtype":
            return _DTYPES[described["name"]]
        if kind == "size":
            return torch.Size(described["shape"])
        if kind == "device":
            return torch.device(described["name"])
        number, shape = described["piece"], described["shape"]
        if any(type(size) is not int or size < 0 for size in (number, *shape)):
            raise ValueError(f"a piece {number!r} of shape {shape!r}")
        if kind == "tensor":
            stride = described.get("stride")
            key = number, described["dtype"], *shape, stride and tuple(stride)  # a tensor and its transpose share a piece
            if key not in self._made:
                self._made[key] = self._tensor(self.contents[number], _DTYPES[described["dtype"]], shape, stride)
            return self._made[key]
        dtype = np.dtype(described["dtype"])
        count = math.prod(shape)
        array = np.frombuffer(self.contents[number], dtype, count).reshape(shape).copy()
        return array if kind == "array" else array[()]

    @staticmethod
    def _tensor(content: bytearray, dtype: torch.dtype, shape: list[int], stride: list[int] | None) -> torch.Tensor:
        count = math.prod(shape)
        if count * dtype.itemsize > len(content):  # before any memory is asked for
            raise ValueError(f"a tensor of {count:,} numbers in {len(content):,} bytes")
        if not count:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(content, dtype=dtype, count=count).clone()
        if stride is None:
            return flat.view(shape)
        if sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) != count - 1:
            raise ValueError(f"strides {stride} for a shape {shape}")
        return torch.empty_strided(shape, stride, dtype=dtype).copy_(flat.as_strided(shape, stride))


def state_of(document: Any, contents: list[bytearray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states by name and the extra values in a checkpoint."""
    pieces = Pieces(contents)
    try:
        states = {name: decode(tree, pieces.leaf) for name, tree in document["stateful"].items()}
        return states, decode(document["extra"], pieces.leaf)
    except (*NONSENSE, RuntimeError) as error:
        raise CheckpointError(f"its document makes no sense ({type(error).__name__}: {error})") from error


def check_fits(stateful: Mapping[str, Any], states: Mapping[str, Any], where: str) -> None:
    """Refuse a checkpoint of another run or model before anything of it is loaded."""
    if stateful.keys() != states.keys():
        raise CheckpointError(
            f"{where} holds {', '.join(sorted(states)) or 'nothing'}, and this run gives {', '.join(sorted(stateful))}: "
            "it belongs to another run. Use its arguments, or another directory."
        )
    for name, part in stateful.items():
        if isinstance(part, (torch.nn.Module, torch.optim.Optimizer)) and not isinstance(states[name], Mapping):
            raise CheckpointError(f"{where} belongs to another run: the state of {name} is a {type(states[name]).__name__}")
        if isinstance(part, torch.nn.Module):
            difference = _difference(part.state_dict(), states[name])
            if difference:
                raise CheckpointError(
                    f"{where} belongs to another model: {name}.{difference}. Use another directory for this one."
                )
        if isinstance(part, torch.optim.Optimizer) and _groups(part.state_dict()) != _groups(states[name]):
            raise CheckpointError(
                f"{where} belongs to another run: {name} has parameter groups of {_groups(part.state_dict())}, "
                f"in the checkpoint {_groups(states[name])}"
            )


def loading_order(stateful: Mapping[str, Any]) -> list[str]:
    """Loaders first, because they may refuse a state; models and optimizers last."""

    def rank(name: str) -> int:
        part = stateful[name]
        if isinstance(part, (torch.nn.Module, torch.optim.Optimizer)):
            return 2
        return 0 if hasattr(part, "__iter__") else 1

    return sorted(stateful, key=rank)


def _groups(state: Mapping[str, Any]) -> list[int]:
    try:
        return [len(group["params"]) for group in state["param_groups"]]
    except NONSENSE:
        return []


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    for key in [*ours, *theirs]:
        if key not in ours or key not in theirs:
            return f"{key} is only in the {'model' if key in ours else 'checkpoint'}"
        left, right = ours[key], theirs[key]
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape != right.shape:
            return f"{key} has shape {tuple(left.shape)}, in the checkpoint {tuple(right.shape)}"
    return None


def generator_states() -> dict[str, Any]:
    """The states of the default generators of Python, NumPy, torch and its devices."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def generators(states: dict[str, Any] | None = None) -> str:
    """The states of the default generators as text: as they are now, or as they were."""
    return json.dumps(encode(generator_states() if states is None else states, _small_leaf, "generators"))


def _small_leaf(value: Any) -> Any:
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    text = base64.b64encode(array.tobytes()).decode()
    return ["tensor" if isinstance(value, torch.Tensor) else "array", array.dtype.str, text]


def _of_small_leaf(described: Any) -> Any:
    kind, dtype, text = described
    array = np.frombuffer(bytearray(base64.b64decode(text)), dtype)
    return torch.from_numpy(array) if kind == "tensor" else array


def set_generators(text: str) -> None:
    """Set the default generators as they were."""
    states = decode(json.loads(text), _of_small_leaf)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    for number, state in enumerate(states.get("cuda", ())):
        if number < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, number)
