"""Tensors on their way through a slot: collated in place, reduced to a few numbers, rebuilt over the same memory.

Only what is certain is done here: plain dense CPU tensors and plain numeric arrays. Everything else takes torch's own
way, so that results, types and errors are torch's in every case.
"""

import contextlib
import ctypes
import math
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import default_collate

from stoker.batch import NoLayout
from stoker.internals.names import collate, collate_arrays, collate_floats, collate_ints, collate_tensors, collations
from stoker.internals.tensors import storage_of
from stoker.memory import ByteArray, PrivateMemory
from stoker.slots.area import Area
from stoker.slots.outbox import Outbox

Size = tuple[int, ...]
Leaf = Callable[..., Any]

_NAMES = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
TORCH_DTYPE: dict[np.dtype[Any], torch.dtype] = {np.dtype(name): getattr(torch, name) for name in _NAMES.split()}
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_DTYPE_CODE = {dtype: code for code, dtype in enumerate(_DTYPES)}
_NUMPY_DTYPE = {dtype: name for name, dtype in TORCH_DTYPE.items()}
_NUMPY_DTYPES = [_NUMPY_DTYPE.get(dtype) for dtype in _DTYPES]


def collate_into(outbox: Outbox, *, alike_everywhere: bool) -> dict[Any, Leaf]:
    """Make torch's `default_collate` stack tensors and arrays straight into the claimed slot. For a worker process.

    Returns the functions that do it: a worker with several outboxes puts those of another one in their place.
    """
    leaves = leaves_in(outbox, alike_everywhere=alike_everywhere)
    collations.update(leaves)
    return leaves


def collate_with(leaves: Mapping[Any, Leaf]) -> None:
    """Put functions for another outbox in the place of those that `collate_into` has set."""
    collations.update(leaves)


def leaves_in(outbox: Outbox, *, alike_everywhere: bool, instead_of: Mapping[Any, Leaf] | None = None) -> dict[Any, Leaf]:
    """Functions for torch's map of collations, except for kinds for which the user has put a function there.

    `instead_of` are functions of another outbox that may be there now.

    When samples differ in dtype, torch gives one result in the training process and another in workers. With
    `alike_everywhere`, workers give the result of the training process.
    """
    torch_stack_tensors: Leaf = collate_tensors
    torch_stack_arrays: Leaf = collate_arrays

    def stack_tensors(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if type(first) is not torch.Tensor or not is_plain(first) or not first.nbytes or not outbox.claimed:
            return torch_stack_tensors(batch, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
        if alike_everywhere and list(map(_dtype, batch)).count(first.dtype) != len(batch):
            return torch.stack(batch, 0)  # type: ignore[arg-type]
        _, room = outbox.room(first.nbytes * len(batch))
        out = tensor_over(room, first.dtype, (len(batch), *first.shape))
        try:
            return torch.stack(batch, 0, out=out)  # type: ignore[arg-type]
        except TypeError:  # not all are tensors: the error is torch's to raise
            return torch_stack_tensors(batch, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]

    def stack_arrays(batch: Sequence[np.ndarray[Any, Any]], *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        dtype = TORCH_DTYPE.get(first.dtype)
        if dtype is not None and outbox.claimed and _are_alike(batch):
            joined = _join(batch) if first.nbytes <= _JOINED_BYTES else None
            _, room = outbox.room(first.nbytes * len(batch))
            if joined is not None:
                room[:] = np.frombuffer(joined, np.uint8)
                return tensor_over(room, dtype, (len(batch), *first.shape))
            rows = np.ndarray((len(batch) * len(first), *first.shape[1:]), first.dtype, room)
            if min(min(array.strides) for array in batch) >= 0:  # torch takes no others
                np.concatenate(batch, out=rows, casting="no")
                return tensor_over(room, dtype, (len(batch), *first.shape))
        return torch_stack_arrays(batch, collate_fn_map=collate_fn_map)

    def gather_numbers(kind: type, code: str, dtype: torch.dtype, torch_gather: Leaf) -> Leaf:
        def gather(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
            if outbox.claimed and _are_all(kind, batch):
                _, room = outbox.room(8 * len(batch))
                try:
                    struct.pack_into(f"={len(batch)}{code}", room, 0, *batch)  # type: ignore[arg-type]
                except struct.error:  # a number that is too large
                    return torch_gather(batch, collate_fn_map=collate_fn_map)
                return tensor_over(room, dtype, (len(batch),))
            return torch_gather(batch, collate_fn_map=collate_fn_map)

        return gather

    def turn_tuples(batch: Sequence[tuple[Any, ...]], *, collate_fn_map: Any = None) -> Any:
        # The same as torch for plain tuples, but with one check that all lengths are equal.
        try:
            columns = list(zip(*batch, strict=True)) if _are_all(tuple, batch) else None
        except ValueError:
            columns = None
        if columns is not None:
            return [collate(column, collate_fn_map=collate_fn_map) for column in columns]
        others = {kind: leaf for kind, leaf in collate_fn_map.items() if leaf is not turn_tuples}
        return collate(batch, collate_fn_map=others)

    leaves: dict[Any, tuple[Leaf | None, Leaf]] = {
        torch.Tensor: (torch_stack_tensors, stack_tensors),
        np.ndarray: (torch_stack_arrays, stack_arrays),
        int: (collate_ints, gather_numbers(int, "q", torch.int64, collate_ints)),
        float: (collate_floats, gather_numbers(float, "d", torch.float64, collate_floats)),
        tuple: (None, turn_tuples),
    }
    known = instead_of or {}
    return {kind: ours for kind, (torchs, ours) in leaves.items() if kind in known or collations.get(kind) is torchs}


_JOINED_BYTES = 16 << 10
"""Arrays up to this size are joined as bytes and copied once more: NumPy takes longer to look at each of them."""
_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


def _are_alike(batch: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether these are plain arrays of one layout and of a dtype that torch takes."""
    first = batch[0]
    return (
        first.ndim > 0
        and first.size > 0
        and _are_all(np.ndarray, batch)
        and list(map(_dtype, batch)).count(first.dtype) == len(batch)
        and list(map(_shape, batch)).count(first.shape) == len(batch)
    )


def _are_all(kind: type, batch: Sequence[Any]) -> bool:
    return list(map(type, batch)).count(kind) == len(batch)


def _join(batch: Sequence[np.ndarray[Any, Any]]) -> bytes | None:
    try:
        return b"".join(batch)  # type: ignore[arg-type]
    except (BufferError, ValueError, TypeError):
        return None  # not contiguous


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but dense numbers in this process's memory."""
    return tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested and not tensor.is_quantized


class TensorReducer:
    """How the tensors of one batch are pickled. Tensors that share memory still do on the other side."""

    reduce_other = staticmethod(reduce_tensor)
    """For what is more than dense numbers in this process's memory: torch's way, to one reader."""

    def __init__(self) -> None:
        self._first_over: dict[int, torch.Tensor] = {}
        self._copies: list[torch.Tensor] = []

    def __call__(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Reduce one tensor, see `pickle`."""
        if not is_plain(tensor) or tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or not tensor.nbytes:
            return self.reduce_other(tensor)  # type: ignore[no-any-return]
        storage = tensor.untyped_storage()
        address, length = storage.data_ptr(), storage.nbytes()
        sizes = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        first = self._first_over.get(storage_of(storage))
        if first is not None:
            return tensor_beside, (first, *sizes)
        if length > 2 * tensor.nbytes:
            # A small part of a large tensor, such as a row of a dataset in memory: only the part is sent.
            tensor = tensor.clone()
            self._copies.append(tensor)
            return self(tensor)
        self._first_over[storage_of(storage)] = tensor
        content = pickle.PickleBuffer((ctypes.c_ubyte * length).from_address(address))
        if tensor.is_contiguous() and length == tensor.nbytes:
            return tensor_over, (content, *sizes[:2])
        return strided_tensor_over, (content, *sizes)


class PlainReducer(TensorReducer):
    """A TensorReducer for any number of readers: objects other than tensors are in the stream itself."""

    @staticmethod
    def reduce_other(tensor: torch.Tensor) -> tuple[Any, ...]:
        """Reduce what is no tensor as `pickle` does for a file."""
        return _reduce_plainly(tensor if tensor.is_leaf else tensor.detach())


def _reduce_plainly(thing: Any) -> tuple[Any, ...]:
    return thing.__reduce_ex__(5)  # type: ignore[no-any-return]


def plain_reducers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """How the tensors of a batch are pickled for any number of readers: no descriptors are passed."""
    known = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    kinds = [kind for kind in known if kind.__module__.split(".")[0] == "torch"]
    return {**dict.fromkeys(kinds, _reduce_plainly), torch.Tensor: PlainReducer()}


class TensorLeaves:
    """The tensors of one batch as leaves of its layout: dense, contiguous, each over memory of its own."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._addresses: set[int] = set()

    def __call__(self, tensor: Any) -> tuple[int, ...]:
        """Place one tensor in the slot, if it is not there already."""
        if type(tensor) is not torch.Tensor or not is_plain(tensor):
            raise NoLayout
        address, length = tensor.data_ptr(), tensor.nbytes
        if (
            tensor.requires_grad
            or tensor.is_conj()
            or tensor.is_neg()
            or not length
            or length != tensor.untyped_storage().nbytes()
            or not tensor.is_contiguous()
            or address in self._addresses
        ):
            raise NoLayout
        self._addresses.add(address)
        offset = self._outbox.find(address)
        if offset is None:
            offset, room = self._outbox.room(length)
            ctypes.memmove(room.__array_interface__["data"][0], address, length)
        return offset, _DTYPE_CODE[tensor.dtype], *tensor.shape


def leaf_over(slot: ByteArray) -> Callable[..., torch.Tensor]:
    """A function that makes tensors of a layout's leaves. They lie over `slot` and keep it alive."""

    def leaf(offset: int, code: int, *shape: int) -> torch.Tensor:
        dtype = _NUMPY_DTYPES[code]
        if dtype is not None:  # by way of NumPy it takes a quarter of the time
            return torch.from_numpy(np.ndarray(shape, dtype, slot, offset))
        flat = torch.frombuffer(slot, dtype=_DTYPES[code], count=math.prod(shape), offset=offset)
        return flat if len(shape) == 1 else flat.resize_(shape)

    return leaf


def tensor_over(content: ByteArray, dtype: torch.dtype, shape: Size) -> torch.Tensor:
    """A contiguous tensor that lies over `content` and keeps it alive."""
    as_numpy = _NUMPY_DTYPE.get(dtype)
    if as_numpy is not None:
        return torch.from_numpy(np.ndarray(shape, as_numpy, content))
    # In place, because a view of a view has limits: it cannot be detached in place, for one.
    flat = torch.frombuffer(content, dtype=dtype)
    return flat if len(shape) == 1 else flat.resize_(shape)


def strided_tensor_over(content: ByteArray, dtype: torch.dtype, shape: Size, stride: Size, offset: int) -> torch.Tensor:
    """A tensor of any layout that lies over `content` and keeps it alive."""
    return tensor_beside(torch.frombuffer(content, dtype=torch.uint8), dtype, shape, stride, offset)


def tensor_beside(other: torch.Tensor, dtype: torch.dtype, shape: Size, stride: Size, offset: int) -> torch.Tensor:
    """Another tensor over the memory of one that was rebuilt before."""
    return torch.empty(0, dtype=dtype).set_(other.untyped_storage(), offset, shape, stride)


def collates_as_torch() -> bool:
    """Whether the user has left torch's map of collations as it was, for the kinds that `Rows` knows."""
    return (
        collations.get(torch.Tensor) is collate_tensors
        and collations.get(np.ndarray) is collate_arrays
        and collations.get(int) is collate_ints
        and collations.get(float) is collate_floats
        and not any(kind in collations for kind in (tuple, list, dict))
    )


class HereCollate:
    """`default_collate` in the training process, into memory that is used again when the batch is gone.

    New memory for every batch would cost a page fault for every page, and threads of one process wait for each other there.
    """

    def __init__(self) -> None:
        self._own = threading.local()

    def __call__(self, samples: Any) -> Any:
        """Collate samples into a batch."""
        with self.claimed() as outbox:
            return default_collate(samples) if outbox is None else self.collate(samples)

    @property
    def outbox(self) -> Outbox:
        """This thread's memory for batches."""
        own = self._own
        if not hasattr(own, "outbox"):
            own.outbox = Outbox(Area(1, 2, memory=PrivateMemory()), 0)
            own.leaves = leaves_in(own.outbox, alike_everywhere=True)
        return own.outbox  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def claimed(self) -> Iterator[Outbox | None]:
        """Within this, this thread has memory for a batch. None when all of it is in use."""
        outbox = self.outbox
        if outbox.claimed:  # a caller has claimed it
            yield outbox
            return
        if not outbox.claim():
            yield None
            return
        try:
            yield outbox
        finally:
            outbox.abandon()

    def collate(self, samples: Any) -> Any:
        """Collate into the claimed memory."""
        return collated(samples, self._own.leaves)


def collated(samples: Any, leaves: dict[Any, Leaf]) -> Any:
    """What `default_collate` makes of samples, with some functions of ours in it."""
    return collate(samples, collate_fn_map={**collations, **leaves})
