"""The training process's side of slots: it lends them out as arrays, and notices when a loan is over."""

import contextlib
import itertools
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from stoker.host import forks
from stoker.memory import PAGE, ByteArray, Mapping
from stoker.slots.area import Area, Head, SlotLease, SlotPlace, lease_of

COPIED_BELOW_BYTES = 16 << 10
"""Copying so little costs less than lending it."""

_inboxes: "weakref.WeakValueDictionary[int, Inbox]" = weakref.WeakValueDictionary()


class _Loan(weakref.ref[SlotLease]):
    """A lent slot, until its lease dies."""

    __slots__ = ("mapping", "place", "used")
    mapping: Mapping
    place: SlotPlace
    used: int


class Pins(Protocol):
    """Page-locks memory. A device reads such memory by itself, so it may still read when no array refers to it any more."""

    def lock(self, address: int, length: int) -> None:
        """Lock a range in memory and tell the device of it."""

    def unlock(self, address: int) -> None:
        """Undo `lock` for a range."""

    def mark(self) -> Any:
        """A mark in the device's work: `passed` tells whether everything before it is done."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has done everything before a mark."""

    def wait(self) -> None:
        """Wait until the device has done everything."""


class Inbox:
    """Opens announced slots as arrays. A slot is free again when its last array is gone.

    With `pins` the usual slots are page-locked. Then a slot is not free before the device has done everything that it was
    asked for while the slot was lent: it may still be copying, which nobody in this process can see.
    """

    _closed = True

    def __init__(self, area: Area, pins: Pins | None = None) -> None:
        self.area = area
        self.pins = pins
        self._locked: dict[SlotPlace, tuple[Mapping, int]] = {}
        self._returned: deque[SlotPlace] = deque()
        self._marked: deque[tuple[Any, list[SlotPlace]]] = deque()
        self._head = Head(area)
        self._turns = self._head.turns
        self._mappings: dict[SlotPlace, Mapping] = {}
        self._loans: dict[int, _Loan] = {}  # by identity: only the caller that takes a loan out of here ends it
        self._closed = False
        self._getpid = os.getpid
        self._owner = self._getpid()
        _inboxes[id(self)] = self

    @property
    def is_ours(self) -> bool:
        """Whether this process made it. A forked child inherits the object, not the memory."""
        return self._owner == self._getpid()  # kept, because loans may end when the interpreter has lost its modules

    def claim_common(self) -> int | None:
        """Take a free slot that several workers will fill. None when all usual ones are in use."""
        turns = self._turns[self.area.common]
        for number in range(self.area.usual):
            if not turns[number]:
                turns[number] = 1
                return number
        return None

    @property
    def is_open(self) -> bool:
        """Whether its memory can still be used."""
        return not self._closed

    def free_common(self, number: int) -> None:
        """Take back a slot that nobody will open. No worker may be writing to it any more."""
        self.free((self.area.common, number))

    def free(self, place: SlotPlace) -> None:
        """Take back an announced slot that nobody will open."""
        self._turns[place] = 0

    def open(self, place: SlotPlace, length: int, used: int) -> tuple[ByteArray, bool]:
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
            copy: ByteArray = mapping.view()[:used].copy()
            self._turns[place] = 0
            return copy, False
        if self.pins is not None:
            self._lock(self.pins, place, mapping, used)
        lease = lease_of(mapping)
        loan = _Loan(lease, self._ended)
        loan.mapping, loan.place, loan.used = mapping, place, used
        self._loans[id(loan)] = loan
        return lease, self.pins is not None

    def _lock(self, pins: Pins, place: SlotPlace, mapping: Mapping, used: int) -> None:
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
        """Free slots that the device does not need any more."""
        if self._returned:
            places = [self._returned.popleft() for _ in range(len(self._returned))]
            self._marked.append((pins.mark(), places))
        while self._marked and pins.passed(self._marked[0][0]):
            for place in self._marked.popleft()[1]:
                self._turns[place] = 0

    def _ended(self, loan: _Loan) -> None:
        # May run inside the garbage collector, at any line of any thread: no lock, nothing that could wait.
        if self._owner == self._getpid() and self._loans.pop(id(loan), None) is not None:
            if self.pins is None or self._closed:
                self._free(loan.place)
            else:
                self._returned.append(loan.place)

    def _free(self, place: SlotPlace) -> None:
        self._turns[place] = 0
        if self._closed:  # another thread may have ended this loan just now
            self.area.discard(place)
            if not self._loans:
                self.area.memory.close()

    def _lent_places(self) -> list[SlotPlace]:
        return [loan.place for loan in list(self._loans.values())]

    def make_private(self) -> None:
        """Turn every lent batch into private memory, so that a child process may keep it too."""
        if self.pins is not None and self._loans:
            self.pins.wait()
            for place in self._lent_places():
                if place in self._locked:
                    self.pins.unlock(self._locked.pop(place)[0].address)
        for number, loan in list(self._loans.items()):
            if self._loans.pop(number, None) is None:
                continue  # it has ended meanwhile
            self._mappings.pop(loan.place, None)
            # Without memory for a copy, the slot is never filled again: the child looks at it.
            with contextlib.suppress(OSError):
                loan.mapping.make_private(loan.used)
                self._free(loan.place)

    def renew(self) -> None:
        """When all workers have ended, free all slots but the lent ones for the next. Usual slots keep their pages."""
        # A copy, because another thread may be dropping a batch.
        returned = self._returned.copy()
        busy = {*self._lent_places(), *returned, *(place for _, places in self._marked for place in places)}
        for place in itertools.product(range(self.area.rows), range(self.area.slots)):
            if place not in busy:
                self._turns[place] = 0
                if place[1] >= self.area.usual and self._head.touched[place]:
                    self._head.touched[place] = 0
                    self.area.discard(place)

    def close(self) -> None:
        """Give back all memory, except that of batches still in use: it goes when they go."""
        if self._closed or not self.is_ours:
            return
        self._closed = True
        if self.pins is not None and self._locked:
            self.pins.wait()
            for mapping, _ in self._locked.values():
                self.pins.unlock(mapping.address)
            self._locked.clear()
        self._mappings.clear()
        start = 0
        for place in sorted(self._lent_places()):
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
    for reference in _inboxes.valuerefs():  # a list, which other threads do not change
        inbox = reference()
        if inbox is not None:
            inbox.make_private()


forks.register(forks.Stage.BATCHES, before=_before_fork)
