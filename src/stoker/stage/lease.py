"""Slots: batches travel from workers to the training process without being copied, and are valid while anybody looks.

Every worker owns a row of slots in one shared Memory. One byte per slot says whose turn it is, and each side writes it
in one direction only, so there is no lock:

    FREE (0)  --  the worker has filled the slot and announces it  -->  LENT (1)
    LENT (1)  --  the training process dropped the last array over it  -->  FREE (0)

The training process sees a slot through a *lease*, an array whose death ends the loan. Everything made from the batch
(tensors, slices, `numpy()`) keeps the lease alive. A batch that is small, or comes when many are kept already, is copied
out at once instead. Nothing here waits.

A fork would give the child a second view that nobody counts. So just before a fork every lent batch is turned into
private memory in place, and the child has its own copy as it has of everything else.
"""

import contextlib
import itertools
import os
import resource
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ResourceError
from stoker.memory import PAGE, Bytes, Mapping, Memory, PrivateMemory, headroom_bytes

KEPT_AS_VIEWS = 16
"""How many batches of one worker may be kept as views; further ones are copied out."""
COPIED_BELOW_BYTES = 16 << 10
"""Copying so little costs less than lending it."""
ALIGNMENT = 64
_STRIDE = 1 << 38
"""Address space of a slot: more than any batch, and free until touched."""
_SMALLEST_SLOT = 1 << 16
_RESERVE_BYTES = 32 << 20
_CHECKED_FROM_BYTES = 1 << 20

_inboxes: "weakref.WeakSet[Inbox]" = weakref.WeakSet()

Place = tuple[int, int]
"""A worker and the number of a slot in its row."""


class Area:
    """The shared memory of one iterator: a row of slots for each worker. Travels to workers of any start method."""

    def __init__(self, workers: int, prefetch: int, *, memory: PrivateMemory | None = None) -> None:
        self.workers = workers
        self.prefetch = prefetch
        self.usual = prefetch + 2  # those under way, the one in the user's hand, and the one about to be
        self.lendable = (
            self.usual + KEPT_AS_VIEWS
        )  # a worker takes the lowest free slot, so a higher one means: many are kept
        self.slots = self.lendable + prefetch  # those under way while all others are kept
        self._head_bytes = -(-workers * self.slots * 9 // PAGE) * PAGE
        self.stride = _STRIDE
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:  # it binds files without a name, too
            self.stride = min(_STRIDE, (limit - self._head_bytes) // (workers * self.slots) // PAGE * PAGE)
            if self.stride < _SMALLEST_SLOT:
                raise ResourceError(f"files may have {limit:,} bytes only, too few for batches: raise `ulimit -f`")
        self.memory: Any = memory or Memory(self._head_bytes + workers * self.slots * self.stride)

    def offset(self, place: Place) -> int:
        """Where in the memory a slot begins."""
        worker, slot = place
        return self._head_bytes + (worker * self.slots + slot) * self.stride

    def discard(self, place: Place) -> None:
        """Give the memory of a slot back."""
        self.memory.discard(self.offset(place), self.stride)


class _Head:
    """What the two sides know of each slot: whose turn it is, and how many of its bytes have been touched."""

    def __init__(self, area: Area) -> None:
        shape = area.workers, area.slots
        self._mapping = area.memory.map(0, area._head_bytes)
        self.touched: NDArray[np.int64] = np.ndarray(shape, np.int64, self._mapping.buffer)
        self.turns: NDArray[np.uint8] = np.ndarray(shape, np.uint8, self._mapping.buffer, self.touched.nbytes)


class _Lease(np.ndarray[Any, Any]):
    """All bytes of a slot. Not handed out: what is handed out lies over it and keeps it alive."""

    mapping: Mapping


def _lease(mapping: Mapping) -> _Lease:
    lease = mapping.view(_Lease)
    lease.mapping = mapping  # type: ignore[attr-defined]
    return lease  # type: ignore[return-value]


class _Slot:
    """A slot as its worker sees it."""

    __slots__ = ("lease", "leases", "mapping", "number", "touched", "used")

    def __init__(self, number: int, touched: int) -> None:
        self.number = number
        self.touched = touched
        self.used = 0
        self.mapping: Mapping | None = None
        self.lease: _Lease | None = None
        self.leases: list[weakref.ref[_Lease]] = []

    def still_looked_at(self) -> bool:
        """Whether user code in the worker has kept something of the last batch."""
        return any(lease() is not None for lease in self.leases)


class Outbox:
    """The worker's side: claim a slot, take room in it piece by piece, announce it.

    `room` outside of `claim` and `announce` is refused, because there is no batch that it could belong to.
    """

    def __init__(self, area: Area, worker: int) -> None:
        self.area = area
        self.worker = worker
        self._head = _Head(area)
        self._turns = memoryview(self._head.turns[worker])
        self._touched = memoryview(self._head.touched[worker])
        self._slots: list[_Slot] = []
        self._current: _Slot | None = None
        self._claimed_by = 0
        self._longest = _SMALLEST_SLOT

    def claim(self) -> bool:
        """Take a free slot, the one used before if possible: its pages are there. False when all are kept by somebody."""
        self._give_back_unusual()
        for slot in self._known_and_further_slots():
            if not self._turns[slot.number] and not slot.still_looked_at():
                break
        else:
            return False
        slot.used = 0
        slot.leases.clear()
        self._lease(slot)
        self._current = slot
        self._claimed_by = threading.get_ident()
        return True

    def room(self, length: int) -> tuple[int, Bytes]:
        """The next `length` bytes of the claimed slot, and their offset."""
        slot = self._current
        assert slot is not None and slot.lease is not None
        start, end = slot.used, slot.used + length
        if end > len(slot.lease):
            # What is laid out already stays where it is: both mappings show the same pages.
            if end > self.area.stride:
                raise ResourceError(
                    f"a batch needs {end:,} bytes and a slot has room for {self.area.stride:,}: raise `ulimit -f`"
                )
            self._longest = min(1 << (end - 1).bit_length(), self.area.stride)
            self._lease(slot)
        if end > slot.touched:
            self._touch(slot, end)
        slot.used = -(-end // ALIGNMENT) * ALIGNMENT
        return start, np.ndarray((length,), np.uint8, slot.lease, start)

    def find(self, address: int) -> int | None:
        """The offset of what lies at an address, if it lies in the claimed slot."""
        slot = self._current
        assert slot is not None
        for reference in slot.leases:
            lease = reference()
            if lease is not None and 0 <= address - lease.mapping.address < lease.mapping.length:
                return address - lease.mapping.address
        return None

    @property
    def claimed(self) -> bool:
        """Whether this thread is making a batch. User code may collate in others; that goes torch's way."""
        return self._current is not None and self._claimed_by == threading.get_ident()

    def rewind(self, used: int) -> None:
        """Take back the room that was given out since `used`."""
        assert self._current is not None
        self._current.used = used

    @property
    def used(self) -> int:
        """How much of the claimed slot is given out."""
        assert self._current is not None
        return self._current.used

    def abandon(self) -> None:
        """Forget the claimed slot; it is free again."""
        if self._current is not None:
            self._current.lease = None
            self._current = None

    def announce(self) -> tuple[int, int, int]:
        """Lend the claimed slot to the training process: its number, the length of its mapping, the bytes in use."""
        slot = self._current
        assert slot is not None and slot.mapping is not None
        self.abandon()
        self._turns[slot.number] = 1
        return slot.number, slot.mapping.length, slot.used

    def _lease(self, slot: _Slot) -> None:
        if slot.mapping is None or slot.mapping.length < self._longest:
            slot.mapping = self.area.memory.map(self.area.offset((self.worker, slot.number)), self._longest)
        slot.lease = _lease(slot.mapping)
        slot.leases.append(weakref.ref(slot.lease))

    def _known_and_further_slots(self) -> Iterator[_Slot]:
        yield from self._slots
        while len(self._slots) < self.area.slots:
            self._slots.append(_Slot(len(self._slots), self._touched[len(self._slots)]))
            yield self._slots[-1]

    def _give_back_unusual(self) -> None:
        """Return the memory of slots that exist only because the user once kept many batches."""
        while len(self._slots) > self.area.usual:
            slot = self._slots[-1]
            if self._turns[slot.number] or slot.still_looked_at():
                return
            self._slots.pop()
            self._touched[slot.number] = 0
            self.area.discard((self.worker, slot.number))

    def _touch(self, slot: _Slot, end: int) -> None:
        assert slot.mapping is not None
        more = end - slot.touched
        if more >= _CHECKED_FROM_BYTES:
            self._check_headroom(more)
            slot.mapping.populate(slot.touched, end)
        slot.touched = self._touched[slot.number] = end

    def _check_headroom(self, more: int) -> None:
        available = headroom_bytes()
        needed = more * self.area.workers + _RESERVE_BYTES  # the other workers are about to ask for the same
        if needed > available:
            raise ResourceError(
                f"not enough memory for another batch: {self.area.workers} workers need {needed >> 20} MiB more and "
                f"{max(0, available) >> 20} MiB are available. Lower batch_size, num_workers or prefetch_factor, keep "
                "fewer batches, or raise the memory limit of this process (cgroup or container)."
            )


class _Loan(weakref.ref[_Lease]):
    """A lent slot, until its lease dies."""

    __slots__ = ("mapping", "place", "used")
    mapping: Mapping
    place: Place
    used: int

    def __new__(cls, lease: _Lease, ended: Callable[["_Loan"], None], *_: object) -> Self:
        return super().__new__(cls, lease, ended)

    def __init__(self, lease: _Lease, ended: Callable[["_Loan"], None], place: Place, used: int) -> None:
        super().__init__(lease, ended)  # type: ignore[call-arg]
        self.mapping = lease.mapping
        self.place = place
        self.used = used


class Pins(Protocol):
    """Page-locked memory: a device may read it by itself, and so may still be reading when nobody else looks any more."""

    def lock(self, address: int, length: int) -> None:
        """Lock a range in memory and tell the device of it."""

    def unlock(self, address: int) -> None:
        """Undo it."""

    def mark(self) -> Any:
        """Something that `passed` knows: all that was asked of the device until now."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has done all that."""

    def wait(self) -> None:
        """Until the device has done everything."""


class Inbox:
    """The training process's side: announced slots in, arrays out that end the loan by themselves.

    With `pins` the usual slots are page-locked. Then a loan that ended is not over before the device has done all that it
    was asked for until then: there may be a copy on its way that nobody in this process knows of.
    """

    _closed = True

    def __init__(self, area: Area, pins: Pins | None = None) -> None:
        self.area = area
        self.pins = pins
        self._locked: dict[Place, tuple[Mapping, int]] = {}
        self._returned: deque[Place] = deque()
        self._marked: deque[tuple[Any, list[Place]]] = deque()
        self._head = _Head(area)
        self._turns = self._head.turns
        self._mappings: dict[Place, Mapping] = {}
        self._loans: dict[Place, _Loan] = {}
        self._closed = False
        self._getpid = os.getpid
        self._owner = self._getpid()
        _inboxes.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process made it. A forked child inherits the object, not the memory."""
        return self._owner == self._getpid()  # kept, because loans may end when the interpreter has lost its modules

    @property
    def lent(self) -> int:
        """How many slots somebody in this process is looking at."""
        return len(self._loans)

    def open(self, place: Place, length: int, used: int) -> tuple[Bytes, bool]:
        """The bytes of an announced slot, and whether they are page-locked."""
        if self.pins is not None:
            self._look_after_returned(self.pins)
        mapping = self._mappings.get(place)
        if mapping is None or mapping.length < length:
            mapping = self.area.memory.map(self.area.offset(place), length)
            if place[1] < self.area.usual:
                self._mappings[place] = mapping
        kept = self.area.lendable if self.pins is None else self.area.usual
        if used < COPIED_BELOW_BYTES or place[1] >= kept:
            copy: Bytes = mapping.view()[:used].copy()
            self._turns[place] = 0
            return copy, False
        if self.pins is not None:
            self._lock(self.pins, place, mapping, used)
        lease = _lease(mapping)
        self._loans[place] = _Loan(lease, self._ended, place, used)
        return lease, self.pins is not None

    def _lock(self, pins: Pins, place: Place, mapping: Mapping, used: int) -> None:
        """Lock the pages of a slot, once, and again when it has grown."""
        before, length = self._locked.get(place, (mapping, 0))
        if before is mapping and length >= used:
            return
        if length:
            pins.wait()
            pins.unlock(before.address)
        length = -(-used // PAGE) * PAGE
        pins.lock(mapping.address, length)
        self._locked[place] = mapping, length

    def _look_after_returned(self, pins: Pins) -> None:
        """Free what the device has done with."""
        if self._returned:
            places = [self._returned.popleft() for _ in range(len(self._returned))]
            self._marked.append((pins.mark(), places))
        while self._marked and pins.passed(self._marked[0][0]):
            for place in self._marked.popleft()[1]:
                self._turns[place] = 0

    def _ended(self, loan: _Loan) -> None:
        # May run inside the garbage collector, at any line of any thread: no lock, nothing that could wait.
        if self.is_ours and self._loans.get(loan.place) is loan:
            del self._loans[loan.place]
            if self.pins is None or self._closed:
                self._free(loan.place)
            else:
                self._returned.append(loan.place)

    def _free(self, place: Place) -> None:
        if not self._closed:
            self._turns[place] = 0
            return
        self.area.discard(place)
        if not self._loans:
            self.area.memory.close()

    def make_private(self) -> None:
        """Turn every lent batch into private memory, so that a child process may keep it too."""
        if self.pins is not None and self._loans:
            self.pins.wait()
            for place in list(self._loans):
                if place in self._locked:
                    self.pins.unlock(self._locked.pop(place)[0].address)
        for place, loan in list(self._loans.items()):
            if self._loans.pop(place, None) is not loan:
                continue  # it has ended meanwhile
            self._mappings.pop(place, None)
            with contextlib.suppress(
                OSError
            ):  # no memory for a copy: then the slot is never filled again, for the child's sake
                loan.mapping.make_private(loan.used)
                self._free(place)

    def renew(self) -> None:
        """Make all slots but the lent ones free for other workers, once the ones before are gone. Usual ones stay warm."""
        busy = {*self._loans, *self._returned, *(place for _, places in self._marked for place in places)}
        for place in itertools.product(range(self.area.workers), range(self.area.slots)):
            if place not in busy:
                self._turns[place] = 0
                if place[1] >= self.area.usual and self._head.touched[place]:
                    self._head.touched[place] = 0
                    self.area.discard(place)

    def close(self) -> None:
        """Give back all memory but that of batches which are still looked at; theirs goes with them."""
        if self._closed or not self.is_ours:
            return
        self._closed = True
        if self.pins is not None and self._locked:
            self.pins.wait()
            for mapping, _ in self._locked.values():
                self.pins.unlock(mapping.address)
        self._mappings.clear()
        start = 0
        for place in sorted(self._loans):
            here = self.area.offset(place)
            self._discard(start, here)
            start = here + self.area.stride
        self._discard(start, self.area.memory.length)
        if not self._loans:
            self.area.memory.close()

    def _discard(self, start: int, end: int) -> None:
        if end > start:
            self.area.memory.discard(start, end - start)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()


def _before_fork() -> None:
    for inbox in list(_inboxes):
        inbox.make_private()


os.register_at_fork(before=_before_fork)
