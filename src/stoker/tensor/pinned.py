"""Page-locked slots: a GPU copies batches straight out of shared memory, with no pinning thread and no copy of ours.

torch's allocator of pinned memory does not know memory that was registered with CUDA: after
`x.to("cuda", non_blocking=True)` it does not record that a copy is under way. So before a slot is used again, the device
must have done everything that it was asked for until the slot's release, on every stream of any library. The driver has an
event for that, which captures all activities of a context (`cuCtxRecordEvent`, since CUDA 12.5).
"""

import contextlib
import ctypes
import mmap
import warnings
from typing import Any

import torch

_SUCCESS, _NOT_READY = 0, 600
_DISABLE_TIMING = 2
_PORTABLE = 1
_warned: set[str] = set()

Mark = list[tuple[int, ctypes.c_void_p]]
"""An event for each device."""


class CudaPins:
    """Page-locks memory for CUDA, and tells when no device of this process needs it any more."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._runtime: Any = torch.cuda.cudart()
        self._record = self._driver.cuCtxRecordEvent
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._spare_events: dict[int, list[ctypes.c_void_p]] = {}
        torch.cuda.current_stream()  # initialises the device
        # Try one page now: that this host forbids it must not turn up in the middle of an epoch.
        page = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(page))
        self.lock(address, mmap.PAGESIZE)
        mark = self.mark()
        self.wait()
        if not mark or not self.passed(mark):
            raise RuntimeError("an event of the whole context did not pass when the device was done")
        self.unlock(address)

    def lock(self, address: int, length: int) -> None:
        """Register a range of memory with CUDA, which page-locks it."""
        code = int(self._runtime.cudaHostRegister(address, length, _PORTABLE))
        if code:
            raise RuntimeError(f"cudaHostRegister refused {length:,} bytes (error {code})")

    def unlock(self, address: int) -> None:
        """Unregister a range."""
        self._runtime.cudaHostUnregister(address)

    def mark(self) -> Mark:
        """An event on each device after all its work until now. Empty while a graph is captured, which forbids events."""
        mark: Mark = []
        for device, context in self._active_contexts():
            spare = self._spare_events[device]
            event = spare.pop() if spare else self._new_event(context)
            mark.append((device, event))
            if self._record(context, event) != _SUCCESS:
                for number, unused in mark:
                    self._spare_events[number].append(unused)
                return []
        return mark

    def passed(self, mark: Mark) -> bool:
        """Whether the devices have passed the events of a mark."""
        if not mark:
            if torch.cuda.is_current_stream_capturing():
                return False
            self.wait()
            return True
        while mark:
            device, event = mark[-1]
            code = self._driver.cuEventQuery(event)
            if code == _NOT_READY:
                return False
            _check(code, "cuEventQuery")
            self._spare_events[device].append(event)
            mark.pop()
        return True

    def wait(self) -> None:
        """Wait until all devices are idle."""
        for device, _ in self._active_contexts():
            torch.cuda.synchronize(device)

    def _active_contexts(self) -> list[tuple[int, ctypes.c_void_p]]:
        """The contexts that torch has made, one for each device in use."""
        flags, active = ctypes.c_uint(), ctypes.c_int()
        found = []
        for device in range(torch.cuda.device_count()):
            if device not in self._contexts:
                number = ctypes.c_int()
                _check(self._driver.cuDeviceGet(ctypes.byref(number), device), "cuDeviceGet")
                self._driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))
                if not active.value:
                    continue
                context = ctypes.c_void_p()
                _check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "cuDevicePrimaryCtxRetain")
                self._contexts[device], self._spare_events[device] = context, []
            found.append((device, self._contexts[device]))
        return found

    def _new_event(self, context: ctypes.c_void_p) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        _check(self._driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        try:
            _check(self._driver.cuEventCreate(ctypes.byref(event), _DISABLE_TIMING), "cuEventCreate")
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return event


def _check(code: int, what: str) -> None:
    if code != _SUCCESS:
        raise RuntimeError(f"{what} failed with error {code}")


def pins_for(*, wanted: bool) -> CudaPins | None:
    """Page-locking where it is wanted; None without a CUDA device that allows it."""
    if not wanted or not torch.cuda.is_available():
        return None
    try:
        return CudaPins()
    except (OSError, AttributeError, RuntimeError) as error:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        if str(error) not in _warned:
            _warned.add(str(error))
            warnings.warn(
                f"slots cannot be page-locked ({error}): batches are pinned by a copy, as torch does", stacklevel=2
            )
        return None
