"""Copies the tensors of a run into the memory of a snapshot, mostly while the loop goes on.

                     at once                                   beside the next forward and backward
    on the CPU       all but optimizers' tensors               optimizers' tensors, by a thread
    on a GPU, "gpu"  a clone of everything in GPU memory       the clone to the host
    on a GPU, "cpu"  a clone of all but optimizers' tensors    everything to page-locked host memory

`wait` is called before every optimizer's `step`. It returns when tensors may change. On a GPU it only makes the stream
wait, and the loop does not stop.
"""

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stoker.checkpoint.files import lay_out
from stoker.checkpoint.snapshot import Gathered, SavedTensor
from stoker.host import forks
from stoker.internals.tensors import copy_all
from stoker.memory import Mapping

_GPU_MEMORY_LEFT_FREE = 0.05

_copiers: "weakref.WeakSet[Copier]" = weakref.WeakSet()


class _Remaining:
    """Copies to the host that a GPU has not begun. A thread launches them, because a thousand launches take a while."""

    def __init__(
        self,
        copies: dict[torch.device, list[tuple[torch.Tensor, int]]],
        cloned: dict[torch.device, torch.cuda.Event],
        streams: dict[torch.device, torch.cuda.Stream],
    ) -> None:
        self._copies = copies
        self._cloned = cloned
        self._streams = streams
        self.issued: dict[torch.device, torch.cuda.Event] = {}

    def issue(self) -> None:
        """Launch the copies."""
        for device, parts in self._copies.items():
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))
            with torch.cuda.stream(stream):
                stream.wait_event(self._cloned[device])
                for tensor, target in parts:
                    _host_tensor(target, tensor).copy_(tensor, non_blocking=True)
                self.issued[device] = stream.record_event()

    def finish(self) -> None:
        """Wait until everything is on the host."""
        for event in self.issued.values():
            event.synchronize()
        self._copies.clear()


class Copier:
    """Copies one snapshot at a time."""

    def __init__(self) -> None:
        self.mode = "cpu"
        self.torn = False
        """Whether somebody other than an optimizer has changed a tensor that was being copied."""
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._owner = os.getpid()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._on_device: dict[torch.device, torch.cuda.Event] = {}
        self._watched: list[SavedTensor] = []
        self._clones: dict[torch.device, tuple[Any, torch.Tensor, list[torch.Tensor]]] = {}
        self._locked: Mapping | None = None
        _copiers.add(self)

    def begin(
        self, gathered: Gathered, mapping: Mapping, done: Callable[[Exception | None], None], *, overlap: bool = True
    ) -> None:
        """Copy what must be copied at once, and the rest beside the loop. A thread calls `done` when all is there."""
        self.join()
        offsets, _ = lay_out(gathered.lengths)
        targets = [mapping.address + offset for offset in offsets]
        of_cpu: list[tuple[SavedTensor, int]] = []
        of_gpu: list[tuple[SavedTensor, int]] = []
        for source, target in zip(gathered.sources, targets, strict=True):
            if not source.tensor.nbytes:
                continue
            (of_gpu if source.tensor.is_cuda else of_cpu).append((source, target))
        later = [pair for pair in of_cpu if overlap and pair[0].is_later]
        for source, target in of_cpu:
            if not (overlap and source.is_later):
                _copy(source, target)
        mode = self.mode
        self._watched = watched = [source for source, _ in later]
        remaining = self._begin_on_gpu(of_gpu, mapping, watched) if of_gpu else None
        self.torn = False
        self._copied.clear()

        def work() -> None:
            failure = None
            try:
                if remaining is not None:
                    remaining.issue()
                    self._on_device = remaining.issued if mode == "cpu" else {}
                for source, target in later:
                    _copy(source, target)
                self.torn = any(source.has_changed() for source in watched)
                self._copied.set()
                if remaining is not None:
                    remaining.finish()
                    changed = any(source.has_changed() for source in watched)
                    if changed and self._on_device:  # and no optimizer has changed it
                        self.torn = True
                    self._on_device = {}
            except Exception as error:
                failure = error
            finally:
                self._copied.set()
            done(failure)

        self._thread = threading.Thread(target=work, name="stoker-snapshot", daemon=True)
        if later or of_gpu:
            self._thread.start()
            if not overlap:
                self.join()
        else:
            self._thread = None
            work()

    def make_ready(self, mapping: Mapping) -> None:
        """Take the pages of some memory from the system, beside the loop."""
        self.join()
        self._thread = threading.Thread(
            target=mapping.populate, args=(0, mapping.length), name="stoker-populate", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until tensors may change."""
        self._copied.wait()
        events, self._on_device = self._on_device, {}
        for device, event in events.items():
            if any(source.has_changed() for source in self._watched):
                self.torn = True
            torch.cuda.current_stream(device).wait_event(event)

    def join(self) -> None:
        """Wait until the whole snapshot is in memory."""
        thread, self._thread = self._thread, None
        if thread is not None and self._owner == os.getpid() and thread is not threading.current_thread():
            thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether a thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def _begin_on_gpu(
        self, pairs: list[tuple[SavedTensor, int]], mapping: Mapping, watched: list[SavedTensor]
    ) -> _Remaining:
        """Clone what must be cloned at once. Returns what remains to be copied beside the loop."""
        self._lock(mapping)
        parts: dict[torch.device, list[tuple[SavedTensor, int]]] = {}
        for source, target in pairs:
            parts.setdefault(source.tensor.device, []).append((source, target))
        copies: dict[torch.device, list[tuple[torch.Tensor, int]]] = {}
        for device, here in parts.items():
            if self.mode == "gpu":
                copies[device] = [(self._clone_flat(device, here), here[0][1])]
            else:
                watched += [source for source, _ in here if source.is_later]
                copies[device] = [
                    (source.tensor if source.is_later else source.tensor.clone(), target) for source, target in here
                ]
        cloned = {device: torch.cuda.current_stream(device).record_event() for device in parts}
        return _Remaining(copies, cloned, self._streams)

    def _clone_flat(self, device: torch.device, pairs: list[tuple[SavedTensor, int]]) -> torch.Tensor:
        """One copy in GPU memory, laid out as on the host. Its memory is kept: allocating it each time would cost more."""
        first, (last, end) = pairs[0][1], pairs[-1]
        kinds = [(source.tensor.dtype, source.tensor.shape, target - first) for source, target in pairs]
        known, flat, views = self._clones.get(device, (None, None, []))
        if known != kinds or flat is None:
            self._clones.pop(device, None)
            del flat, views
            flat = torch.empty(end - first + last.tensor.nbytes, dtype=torch.uint8, device=device)
            views = [
                flat[start : start + source.tensor.nbytes].view(dtype).view(shape)
                for (source, _), (dtype, shape, start) in zip(pairs, kinds, strict=True)
            ]
            self._clones[device] = kinds, flat, views
        copy_all(views, [source.tensor for source, _ in pairs])
        return flat

    def _lock(self, mapping: Mapping) -> None:
        """Page-lock the host memory, so that the GPU writes there by itself."""
        if self._locked is mapping:
            return
        if self._locked is not None:
            torch.cuda.cudart().cudaHostUnregister(self._locked.address)
        self._locked = None
        mapping.populate(0, mapping.length)
        if int(torch.cuda.cudart().cudaHostRegister(mapping.address, mapping.length, 0)) == 0:
            self._locked = mapping

    def seconds(self, gathered: Gathered, mapping: Mapping) -> tuple[float, float | None, bool]:
        """The seconds of a copy to the host, those of a clone in GPU memory, and whether there is room for a clone."""
        on_gpu = [source.tensor for source in gathered.sources if source.tensor.is_cuda]
        clone_s = None
        fits = bool(on_gpu)
        with _mode(self, "cpu"):
            for _ in range(2 if on_gpu else 1):  # the first time, memory is made ready
                _synchronize(on_gpu)
                began = time.perf_counter()
                self.begin(gathered, mapping, _ignore)
                self.join()
                copy_s = time.perf_counter() - began
        for device in {tensor.device for tensor in on_gpu}:
            needed = sum(tensor.nbytes for tensor in on_gpu if tensor.device == device)
            free, total = torch.cuda.mem_get_info(device)
            free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            fits = fits and free - needed > _GPU_MEMORY_LEFT_FREE * total
        if fits:
            try:
                for _ in range(2):
                    _synchronize(on_gpu)
                    began = time.perf_counter()
                    with _mode(self, "gpu"):
                        self.begin(gathered, mapping, _ignore)
                    for device in {tensor.device for tensor in on_gpu}:
                        torch.cuda.current_stream(device).synchronize()
                    clone_s = time.perf_counter() - began
                    self.join()
            except torch.cuda.OutOfMemoryError:
                self._clones, fits, clone_s = {}, False, None
        return copy_s, clone_s, fits

    def close(self) -> None:
        """Give all memory back."""
        self.join()
        self._clones = {}
        if self._locked is not None:
            torch.cuda.cudart().cudaHostUnregister(self._locked.address)
            self._locked = None


@contextlib.contextmanager
def _mode(copier: Copier, mode: str) -> Iterator[None]:
    before, copier.mode = copier.mode, mode
    try:
        yield
    finally:
        copier.mode = before


def _copy(source: SavedTensor, target: int) -> None:
    # Not by torch, whose threads would compete with those of the loop. The interpreter lock is released meanwhile.
    ctypes.memmove(target, source.tensor.data_ptr(), source.tensor.nbytes)


def _host_tensor(address: int, like: torch.Tensor) -> torch.Tensor:
    content = (ctypes.c_ubyte * like.nbytes).from_address(address)
    return torch.frombuffer(content, dtype=like.dtype, count=like.numel()).view(like.shape)


def _synchronize(tensors: list[torch.Tensor]) -> None:
    for device in {tensor.device for tensor in tensors}:
        torch.cuda.synchronize(device)


def _ignore(_: Exception | None) -> None:
    pass


class UpdateHooks:
    """Watches every optimizer of this process: what is called before an update, and how long updates take."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._owner = os.getpid()
        self._began = 0.0
        self.seconds = 0.0
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._pre),
            register_optimizer_step_post_hook(self._post),
        ]

    def _pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self._owner != os.getpid():
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._begin()
            return None

        def then_begin() -> Any:  # forward and backward are in there, as under Lightning
            result = closure()
            self._begin()
            return result

        return ((args[0], then_begin, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": then_begin})

    def _begin(self) -> None:
        self._before()
        self._began = time.perf_counter()

    def _post(self, *_: Any) -> None:
        self.seconds = time.perf_counter() - self._began

    def close(self) -> None:
        """Stop watching the optimizers."""
        for handle in self._handles:
            handle.remove()


def _before_fork() -> None:
    # A copying thread does not exist in a forked child. So before a fork it finishes: the child must not wait for it.
    for copier in list(_copiers):
        copier.join()


forks.register(forks.Stage.THREADS, before=_before_fork)
