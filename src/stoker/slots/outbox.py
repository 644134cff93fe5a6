"""The worker's side of slots: it fills a slot, announces it, and uses it again when the training process has freed it."""

import threading
import weakref
from collections.abc import Iterator

import numpy as np

from stoker.errors import ResourceError
from stoker.host.headroom import headroom_bytes
from stoker.memory import ByteArray, Mapping
from stoker.slots.area import SMALLEST_SLOT, Area, Head, SlotLease, lease_of

ALIGNMENT = 64
_RESERVE_BYTES = 32 << 20
_CHECKED_FROM_BYTES = 1 << 20


class _Slot:
    """A slot as its worker sees it."""

    __slots__ = ("lease", "leases", "mapping", "number", "row", "touched", "used")

    def __init__(self, row: int, number: int, touched: int) -> None:
        self.row = row
        self.number = number
        self.touched = touched
        self.used = 0
        self.mapping: Mapping | None = None
        self.lease: SlotLease | None = None
        self.leases: list[weakref.ref[SlotLease]] = []

    def still_looked_at(self) -> bool:
        """Whether user code in the worker has kept something of the last batch."""
        for lease in self.leases:  # noqa: SIM110 (a generator would take longer than what it does)
            if lease() is not None:
                return True
        return False


class NoRoom(Exception):  # noqa: N818
    """A batch is larger than what it may occupy."""


class Outbox:
    """The worker's side: claim a slot, take room in it piece by piece, announce it.

    `room` outside of `claim` and `announce` is refused, because there is no batch that it could belong to.
    """

    def __init__(self, area: Area, worker: int) -> None:
        self.area = area
        self.worker = worker
        self._head = Head(area)
        self._turns = memoryview(self._head.turns[worker])
        self._touched = memoryview(self._head.touched[worker])
        self._slots: list[_Slot] = []
        self._common: dict[int, _Slot] = {}
        self._current: _Slot | None = None
        self._claimed_by = 0
        self._longest = SMALLEST_SLOT
        self.limit = 1 << 62
        """How many bytes a batch may have; more is NoRoom."""

    def claim(self) -> bool:
        """Take a free slot, if possible the last one, whose pages are there. False when all slots are in use."""
        if len(self._slots) > self.area.usual:
            self._give_back_unusual()
        turns = self._turns
        for slot in self._slots:
            if not turns[slot.number] and not slot.still_looked_at():
                self._begin(slot)
                return True
        for slot in self._further_slots():
            if not turns[slot.number]:
                self._begin(slot)
                return True
        return False

    def join(self, number: int) -> bool:
        """Help to fill a slot of the common row, which the training process has claimed."""
        slot = self._common.setdefault(number, _Slot(self.area.common, number, 0))
        if slot.still_looked_at():
            return False
        self._begin(slot)
        return True

    def _begin(self, slot: _Slot) -> None:
        slot.used = 0
        slot.leases.clear()
        self._lease(slot)
        self._current = slot
        self._claimed_by = threading.get_ident()

    def room(self, length: int, written: tuple[int, int] | None = None) -> tuple[int, ByteArray]:
        """The next `length` bytes of the claimed slot, and their offset. In a common slot only `written` bytes are ours."""
        slot = self._current
        assert slot is not None and slot.lease is not None
        start, end = slot.used, slot.used + length
        if end > self.limit:
            raise NoRoom
        if end > len(slot.lease):
            # What is laid out already stays where it is: both mappings show the same pages.
            if end > self.area.stride:
                raise ResourceError(
                    f"a batch needs {end:,} bytes and a slot has room for {self.area.stride:,}: raise `ulimit -f`"
                )
            self._longest = min(1 << (end - 1).bit_length(), self.area.stride)
            self._lease(slot)
        if end > slot.touched:
            if slot.row == self.worker:
                self._touch(slot, end)
            elif written is not None:
                self._touch_common(slot, start + written[0], start + written[1])
        slot.used = -(-end // ALIGNMENT) * ALIGNMENT
        return start, np.ndarray((length,), np.uint8, slot.lease, start)

    def find(self, address: int) -> int | None:
        """The offset of an address in the claimed slot, if it lies there."""
        slot = self._current
        assert slot is not None
        for reference in slot.leases:
            lease = reference()
            if lease is not None and 0 <= address - lease.mapping.address < lease.mapping.length:
                return address - lease.mapping.address
        return None

    @property
    def claimed(self) -> bool:
        """Whether this thread is making a batch. Batches that user code collates in other threads go torch's way."""
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

    def content(self) -> ByteArray:
        """All that is given out of the claimed slot."""
        slot = self._current
        assert slot is not None and slot.lease is not None
        return np.ndarray((slot.used,), np.uint8, slot.lease)

    def abandon(self) -> None:
        """Free the claimed slot without announcing it."""
        if self._current is not None:
            self._current.lease = None
            self._current = None

    def announce(self) -> tuple[int, int, int]:
        """Lend the claimed slot to the training process. Returns its number, its mapping's length and the bytes in use."""
        slot = self._current
        assert slot is not None and slot.mapping is not None
        self.abandon()
        if slot.row == self.worker:
            self._turns[slot.number] = 1
        return slot.number, slot.mapping.length, slot.used

    def withdraw(self, number: int) -> None:
        """Take back a slot that was announced, and that nobody has been told of."""
        self._turns[number] = 0

    def _lease(self, slot: _Slot) -> None:
        if slot.mapping is None or slot.mapping.length < self._longest:
            slot.mapping = self.area.memory.map(self.area.offset((slot.row, slot.number)), self._longest)
        slot.lease = lease_of(slot.mapping)
        slot.leases.append(weakref.ref(slot.lease))

    def _further_slots(self) -> Iterator[_Slot]:
        while len(self._slots) < self.area.slots:
            self._slots.append(_Slot(self.worker, len(self._slots), self._touched[len(self._slots)]))
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
        self._reserve(slot, slot.touched, end)
        if more >= _CHECKED_FROM_BYTES:
            self._check_headroom(more)
            slot.mapping.populate(slot.touched, end)
        slot.touched = self._touched[slot.number] = end

    def _touch_common(self, slot: _Slot, start: int, end: int) -> None:
        assert slot.mapping is not None
        self._reserve(slot, start, end)
        if end - start >= _CHECKED_FROM_BYTES:
            self._check_headroom(end - start)
            slot.mapping.populate(start, end)

    def _reserve(self, slot: _Slot, start: int, end: int) -> None:
        self.area.memory.reserve(self.area.offset((slot.row, slot.number)) + start, end - start)

    def _check_headroom(self, more: int) -> None:
        available = headroom_bytes()
        needed = more * self.area.workers + _RESERVE_BYTES  # the other workers are about to need as much
        if needed > available:
            raise ResourceError(
                f"not enough memory for another batch: {self.area.workers} workers need {needed >> 20} MiB more and "
                f"{max(0, available) >> 20} MiB are available. Lower batch_size, num_workers or prefetch_factor, keep "
                "fewer batches, or raise the memory limit of this process (cgroup or container)."
            )
