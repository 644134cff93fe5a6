"""A stand-in for a picture's numbers, in workers: it keeps the bytes, and notes what is to be done with them.

While a worker records, a mode of torch sees every call. Where bytes are converted to float32, the result is a `Recorder`:
it has the shape and type of the numbers, and notes the operations of a tail (`tail.NAMES`, with a number or a small
tensor). Whatever else is done with it makes it real first: then it is what it would have been without us, and goes on so.
So any code may do anything with it, and none needs to be known by its name.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from stoker.device.tail import NAMES, Ops, finish, plain_operand
from stoker.internals.tensors import make_wrapper, without_subclasses

SMALLEST_BYTES = 3072
"""Fewer bytes are converted sooner than noted."""
_LARGEST_OPERAND = 64


class Content(Protocol):
    """Where the bytes come from."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """How the user's code sees them lie."""

    def bytes(self) -> torch.Tensor:
        """The bytes, which nobody changes, as they do lie."""


class BytesHere:
    """Bytes that are there: a copy, for the user may use the memory again."""

    def __init__(self, content: torch.Tensor, stride: tuple[int, ...] | None = None) -> None:
        self._content = content.clone()
        self.shape, self.stride = tuple(content.shape), stride or self._content.stride()

    def bytes(self) -> torch.Tensor:
        """The bytes."""
        return self._content


class Recorder(torch.Tensor):
    """Bytes, or numbers of them, with what was done to them so far."""

    content: Content
    ops: Ops | None
    """None for bytes; else what was done after they became numbers."""
    made: torch.Tensor | None
    """What it is, once somebody needed it."""

    @staticmethod
    def __new__(cls, content: Content, ops: Ops | None = ()) -> "Recorder":
        """Stand in for `content` after `ops`."""
        dtype = torch.uint8 if ops is None else torch.float32
        self: Recorder = make_wrapper(cls, content.shape, strides=content.stride, dtype=dtype, device="cpu")
        self.content, self.ops, self.made = content, ops, None
        return self

    def made_real(self) -> torch.Tensor:
        """What this stands for."""
        if self.made is None:
            content = self.content.bytes()
            lies = content if content.stride() == self.content.stride else content.contiguous()
            self.made = lies.clone() if self.ops is None else finish(lies, self.ops)
        return self.made

    def as_subclass(self, kind: Any) -> Any:
        """A picture by another name, which `default_collate` takes off again. Other kinds have more to say."""
        if self.made is None and kind.__name__ in ("Tensor", "Image"):
            return self
        return self.made_real().as_subclass(kind)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_real(args), **_real(kwargs or {}))


class Recording(TorchFunctionMode):
    """While this is on in a thread, bytes that become numbers are recorded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of torch's, or note that it was called."""
    act, subject = _ACTS.get(func), args[0] if args else None
    if act is not None and type(subject) is Recorder:
        if subject.made is None and (result := act(subject, func, args, kwargs)) is not None:
            return result
    elif act in _BEGINNINGS and type(subject) is torch.Tensor and _is_worth(subject):
        result = _BEGINNINGS[act](subject, func, args, kwargs)
        if result is not None:
            return result
    if func is torch.as_tensor and type(subject) is Recorder and subject.made is None and _is_same_type(subject, kwargs):
        return subject
    return func(*_real(args), **_real(kwargs))


def _real(value: Any) -> Any:
    kind = type(value)
    if kind is Recorder:
        return value.made_real()
    if kind is tuple or kind is list:
        return kind(map(_real, value)) if any(type(part) in _DEEP for part in value) else value
    if kind is dict:
        return {key: _real(part) for key, part in value.items()}
    return value


_DEEP = frozenset({Recorder, tuple, list, dict})


def _dtype_asked(func: Any, args: Any, kwargs: Any) -> torch.dtype | None:
    """The type that a conversion asks for, if it asks for nothing else."""
    if func is torch.Tensor.float:
        return torch.float32 if len(args) == 1 and not kwargs else None
    if len(args) == 2 and not kwargs:
        asked = args[1]
    elif len(args) == 1 and len(kwargs) == 1:
        asked = kwargs.get("dtype")
    else:
        return None
    return asked if type(asked) is torch.dtype else None


def _is_worth(subject: torch.Tensor) -> bool:
    return (
        subject.dtype is torch.uint8
        and subject.numel() >= SMALLEST_BYTES
        and subject.is_cpu
        and subject.layout is torch.strided
        and not subject.requires_grad
    )


def _begin(subject: torch.Tensor, func: Any, args: Any, kwargs: Any) -> Any:
    return Recorder(BytesHere(subject)) if _dtype_asked(func, args, kwargs) is torch.float32 else None


def _begin_in_rows(subject: torch.Tensor, func: Any, args: Any, kwargs: Any) -> Any:
    """Colours that lie side by side are to lie one after the other: the device does that sooner."""
    if len(args) != 1 or kwargs or subject.dim() != 3 or not lies_by_pixel(subject):
        return None
    _, height, width = subject.shape
    return Recorder(BytesHere(subject, (height * width, width, 1)), None)


def lies_by_pixel(content: torch.Tensor) -> bool:
    """Whether a picture's colours lie side by side in memory."""
    return content.dim() == 3 and content.shape[0] > 1 and content.permute(1, 2, 0).is_contiguous()


def _convert(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    asked = _dtype_asked(func, args, kwargs)
    if asked is torch.float32:
        return Recorder(subject.content) if subject.ops is None else subject
    return subject if asked is torch.uint8 and subject.ops is None else None


def _is_same_type(subject: Recorder, kwargs: Any) -> bool:
    own = torch.uint8 if subject.ops is None else torch.float32
    return kwargs.get("dtype") in (None, own) and kwargs.get("device") is None and not kwargs.keys() - {"dtype", "device"}


def _note(name: str, *, in_place: bool) -> Callable[..., Any]:
    def note(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
        if subject.ops is None or len(args) != 2 or kwargs:
            return None
        value = args[1]
        if type(value) is torch.Tensor:
            if value.dtype is not torch.float32 or not value.is_cpu or value.numel() > _LARGEST_OPERAND:
                return None
            if value.requires_grad or not _fits(value.shape, subject.content.shape):
                return None
            value = plain_operand(value)
        elif type(value) is not float and type(value) is not int:
            return None
        ops = (*subject.ops, (name, value))
        if not in_place:
            return Recorder(subject.content, ops)
        subject.ops = ops
        return subject

    return note


def _fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a tensor of a shape can be applied to a whole without making it larger."""
    last = whole[len(whole) - len(shape) :]
    return len(shape) <= len(whole) and all(one in (1, other) for one, other in zip(shape, last, strict=True))


def _clone(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return Recorder(subject.content, subject.ops) if len(args) == 1 and not kwargs else None


def _itself(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return subject if len(args) == 1 and not kwargs else None


def _contiguous(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return subject if len(args) == 1 and not kwargs and _tell(subject, torch.Tensor.is_contiguous, args, {}) else None


def _no_gradient(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return subject if len(args) == 2 and args[1] is False and not kwargs else None


def _tell(subject: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    with without_subclasses():
        return func(*args, **kwargs)


def _acts() -> dict[Any, Callable[..., Any]]:
    tensor: Any = torch.Tensor
    acts: dict[Any, Callable[..., Any]] = {tensor.to: _convert, tensor.float: _convert, tensor.clone: _clone}
    acts |= {torch.clone: _clone, tensor.detach: _itself, tensor.contiguous: _contiguous}
    acts[tensor.requires_grad_] = _no_gradient
    for name in NAMES:
        acts[getattr(tensor, name)] = acts[getattr(torch, name)] = _note(name, in_place=False)
        acts[getattr(tensor, f"{name}_")] = _note(name, in_place=True)
        long = {"div": "truediv"}.get(name, name)
        acts[getattr(tensor, f"__{long}__")] = acts[getattr(tensor, name)]
        acts[getattr(tensor, f"__i{long}__")] = acts[getattr(tensor, f"{name}_")]
    acts[tensor.__rmul__] = acts[tensor.mul]
    for name in "true_divide", "subtract", "multiply", "divide":
        short = {"true_divide": "div", "subtract": "sub", "multiply": "mul", "divide": "div"}[name]
        acts[getattr(tensor, name)] = acts[getattr(torch, name)] = acts[getattr(tensor, short)]
        acts[getattr(tensor, f"{name}_")] = acts[getattr(tensor, f"{short}_")]
    for name in _TOLD:
        acts[getattr(tensor, name)] = _tell
    for name in _TOLD_AS_ATTRIBUTES:
        acts[getattr(tensor, name).__get__] = _tell
    acts[torch.is_floating_point] = acts[torch.numel] = _tell
    return acts


_TOLD = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_contiguous", "stride", "is_complex",
         "element_size", "__len__", "get_device")  # fmt: skip
_TOLD_AS_ATTRIBUTES = ("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_cuda", "is_cpu", "is_sparse",
                       "is_quantized", "is_meta", "is_leaf", "nbytes", "itemsize")  # fmt: skip
_ACTS = _acts()
_BEGINNINGS: dict[Any, Callable[..., Any]] = {_convert: _begin, _contiguous: _begin_in_rows}
