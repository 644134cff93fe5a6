"""A stand-in for a picture's numbers, in workers: it keeps the bytes, and notes what is to be done with them.

While a worker records, a mode of torch sees every call. Where bytes are converted to float32, the result is a `Recorder`:
it has the shape and type of the numbers, and notes the operations of a tail (`tail.NAMES`, with a number or a small
tensor). Whatever else is done with it makes it real first: then it is what it would have been without us, and goes on so.
So any code may do anything with it, and none needs to be known by its name.

torchvision's second transforms look at the class of what they get: an `Image` is a picture, another tensor may be a label.
What stands in for an `Image` is one, too: its class, made by `recorder_of`, is a `Recorder` and an `Image`.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from stoker.device.tail import NAMES, Ops, finish, plain_operand
from stoker.internals.tensors import make_wrapper, without_dispatch, without_subclasses

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


@dataclass(slots=True, eq=False)
class MemoryNotes:
    """What is known of one memory that is not there. All names of it share these notes."""

    content: Content
    ops: Ops | None
    """None for bytes; else what was done after they became numbers."""
    made: torch.Tensor | None = None
    """What it is, once somebody needed it."""


class Recorder(torch.Tensor):
    """Bytes, or numbers of them, with what was done to them so far."""

    kind: Any = None
    """The class of what this stands for, if that is not a plain tensor."""
    notes: MemoryNotes | None = None
    """None if this has memory: it is a real tensor that torch itself has given the class of a stand-in."""

    @staticmethod
    def __new__(cls, content: Content, ops: Ops | None = ()) -> "Recorder":
        """Stand in for `content` after `ops`."""
        return cls._of(MemoryNotes(content, ops))

    @classmethod
    def _of(cls, notes: MemoryNotes) -> "Recorder":
        content, dtype = notes.content, torch.uint8 if notes.ops is None else torch.float32
        self: Recorder = make_wrapper(cls, content.shape, strides=content.stride, dtype=dtype, device="cpu")
        self.notes = notes
        return self

    @property
    def noted(self) -> MemoryNotes | None:
        """What was noted; None if this was made real."""
        notes = self.notes
        return notes if notes is not None and notes.made is None else None

    def made_real(self) -> torch.Tensor:
        """What this stands for."""
        if (notes := self.notes) is None:
            with without_dispatch():
                return torch.Tensor.as_subclass(self, self.kind or torch.Tensor)  # type: ignore[no-any-return]
        if notes.made is None:
            content = notes.content.bytes()
            lies = content if content.stride() == notes.content.stride else content.contiguous()
            notes.made = lies.clone() if notes.ops is None else finish(lies, notes.ops)
        return notes.made if self.kind is None else notes.made.as_subclass(self.kind)

    def as_subclass(self, kind: Any) -> Any:
        """A picture by another name, for the same memory. Other kinds have more to say."""
        real = (kind.kind or torch.Tensor) if issubclass(kind, Recorder) else kind
        notes = self.noted
        if notes is None or not (real is torch.Tensor or is_picture(real)):
            return self.made_real().as_subclass(real)
        return (Recorder if real is torch.Tensor else recorder_of(real))._of(notes)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_real(args), **_real(kwargs or {}))


def is_picture(kind: Any) -> bool:
    """Whether a class is torchvision's `Image`: it is nothing but a tensor that is known to be a picture."""
    return (kind.__module__, kind.__name__) == (_IMAGES, "Image")


class _Alike(type(torch.Tensor)):  # type: ignore[misc]
    """A class that is found in a dictionary, as in `ToDtype({Image: torch.float32})`, where what it stands for is."""

    kind: Any

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.kind

    def __hash__(cls) -> int:
        return hash(cls.kind)


@functools.cache
def recorder_of(kind: Any) -> Any:
    """The class of what stands in for pictures of a class."""
    return _Alike(f"Recorder{kind.__name__}", (Recorder, kind), {"kind": kind})


class Recording(TorchFunctionMode):
    """While this is on in a thread, bytes that become numbers are recorded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of torch's, or note that it was called."""
    act, subject = _ACTS.get(func), args[0] if args else None
    if isinstance(subject, Recorder):
        if act is not None and subject.noted is not None and (result := act(subject, func, args, kwargs)) is not None:
            return result if act is _tell or subject.kind is None else _of_class(subject, func, result)
    elif act in _BEGINNINGS and type(subject) is torch.Tensor and _is_worth(subject):
        result = _BEGINNINGS[act](subject, func, args, kwargs)
        if result is not None:
            return result
    return func(*_real(args), **_real(kwargs))


def _of_class(subject: Any, func: Any, result: Any) -> Any:
    """What torchvision gives for a function of its `Image`: mostly a plain tensor."""
    keeps = func in _KEEPING_THE_KIND or _keeps_all()
    if result is subject and keeps:
        return subject
    return result.as_subclass(subject.kind if keeps else torch.Tensor)


def _keeps_all() -> bool:
    """Whether torchvision was told that whatever is made of an `Image` is one."""
    return bool(getattr(sys.modules.get(_HELPERS), "_must_return_subclass", bool)())


def _real(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Recorder):
        return value.made_real()
    if kind is tuple or kind is list:
        return (
            kind(map(_real, value)) if any(type(part) in _DEEP or isinstance(part, Recorder) for part in value) else value
        )
    if kind is dict:
        return {key: _real(part) for key, part in value.items()}
    return value


_DEEP = (Recorder, tuple, list, dict)
_KEEPING_THE_KIND = frozenset(
    {torch.Tensor.to, torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.requires_grad_, torch.as_tensor}
)
"""What gives an `Image` of an `Image`. All else gives a plain tensor."""
_IMAGES, _HELPERS = "torchvision.tv_tensors._image", "torchvision.tv_tensors._torch_function_helpers"


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


def _convert(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    asked = _dtype_asked(func, args, kwargs)
    if asked is torch.float32:
        return Recorder(subject.notes.content) if subject.notes.ops is None else subject
    return subject if asked is torch.uint8 and subject.notes.ops is None else None


def _as_tensor(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    own = torch.uint8 if subject.notes.ops is None else torch.float32
    is_same = kwargs.get("dtype") in (None, own) and kwargs.get("device") is None
    return subject if is_same and len(args) == 1 and not kwargs.keys() - {"dtype", "device"} else None


def _note(name: str, *, in_place: bool) -> Callable[..., Any]:
    def note(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
        notes = subject.notes
        if notes.ops is None or len(args) != 2 or kwargs:
            return None
        value = args[1]
        if type(value) is torch.Tensor:
            if value.dtype is not torch.float32 or not value.is_cpu or value.numel() > _LARGEST_OPERAND:
                return None
            if value.requires_grad or not _fits(value.shape, notes.content.shape):
                return None
            value = plain_operand(value)
        elif type(value) is not float and type(value) is not int:
            return None
        ops = (*notes.ops, (name, value))
        if not in_place:
            return Recorder(notes.content, ops)
        notes.ops = ops
        return subject

    return note


def _fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a tensor of a shape can be applied to a whole without making it larger."""
    last = whole[len(whole) - len(shape) :]
    return len(shape) <= len(whole) and all(one in (1, other) for one, other in zip(shape, last, strict=True))


def _clone(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return Recorder(subject.notes.content, subject.notes.ops) if len(args) == 1 and not kwargs else None


def _itself(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return subject if len(args) == 1 and not kwargs else None


def _contiguous(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return subject if len(args) == 1 and not kwargs and _tell(subject, torch.Tensor.is_contiguous, args, {}) else None


def _no_gradient(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return subject if len(args) == 2 and args[1] is False and not kwargs else None


def _tell(subject: Any, func: Any, args: Any, kwargs: Any) -> Any:
    with without_subclasses():
        return func(*args, **kwargs)


def _acts() -> dict[Any, Callable[..., Any]]:
    tensor: Any = torch.Tensor
    acts: dict[Any, Callable[..., Any]] = {tensor.to: _convert, tensor.float: _convert, tensor.clone: _clone}
    acts |= {torch.as_tensor: _as_tensor, torch.clone: _clone, tensor.detach: _itself, tensor.contiguous: _contiguous}
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
