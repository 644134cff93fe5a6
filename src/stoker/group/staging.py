"""Batches of a group in memory that its processes share, and the way there for those who prepare them.

The memory has no name. A process opens it through a member that lives (`/proc/PID/fd/N`, this user's alone): it is gone
with the last of them, however that went, and no size of /dev/shm bounds it. Who is alive is what the kernel says; whoever
waits looks from time to time.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import MemberLost, ResourceError
from stoker.group.records import NOWHERE, Batch, Draw, Place
from stoker.group.rules import WORK, Slots
from stoker.group.table import Table
from stoker.host import process
from stoker.host.headroom import headroom_bytes
from stoker.memory import PAGE, Bytes, Mapping, Memory, PrivateMemory
from stoker.slots.area import Area

LOOK_S = 0.1
"""How often one who waits asks the kernel who is alive."""
_STRIDE = 1 << 38
_SLOTS = 1 << 12
LENGTH = _STRIDE * _SLOTS
_SHIFT = 1 << 61
_RESERVE_BYTES = 64 << 20
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Address:
    """Where a member's workers find the group."""

    folder: str
    member: int
    pid: int
    descriptor: int


def default_bytes() -> int:
    """How much memory a group may use for batches, if nobody says."""
    return max(1 << 20, min(_MOST_BYTES, headroom_bytes() // 4))


class Staging:
    """The group as one process of it sees it: its table, and its memory."""

    def __init__(self, address: Address) -> None:
        self.folder = Path(address.folder)
        self.member = address.member
        self.table = Table(self.folder / "table", Slots.of)
        descriptor = address.descriptor
        if address.pid != os.getpid():
            descriptor = os.open(f"/proc/{address.pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self.memory = Memory(LENGTH, descriptor=descriptor)
        self.process = process.own()
        self.meanwhile: Callable[[], Callable[[float], object] | None] = lambda: None
        """A reference to what a reader does from time to time while it waits for room, told since when."""
        self._looked_at = 0.0

    def look_around(self) -> None:
        """Whoever is dead has gone."""
        self._looked_at = time.monotonic()
        with self.table.look() as slots:
            everybody = {p for m in slots.members.values() for p in (m.process, *m.workers)} | {*slots.room.lost.values()}
        if not all(process.is_alive(*one) for one in everybody):
            with self.table.change() as slots:
                slots.sweep(process.is_alive)

    # ---- for those who prepare

    def next_work(self, goes_on: Callable[[], bool]) -> Place | Draw | None:
        """What this process shall prepare; None when its member has gone."""
        while goes_on():
            if time.monotonic() - self._looked_at > LOOK_S:
                self.look_around()
            ticket = self.table.ticket(WORK)
            with self.table.change() as slots:
                if self.member not in slots.members or slots.members[self.member].is_leaving:
                    return None
                found: Place | Draw | None = slots.claim(self.member, self.process)
            if found is not None:
                return found
            self.table.wait(WORK, ticket, LOOK_S)
            self.look_around()
        return None

    def drawn(self, epoch: int, steps: int, digest: str) -> str:
        """Say what an epoch consists of. The digest that holds in the group."""
        with self.table.change() as slots:
            return str(slots.draw(epoch, steps, digest))

    def publish(self, place: Place, parts: list[Bytes], asleep: float = 0.0) -> bool:
        """Stage a batch that this process has claimed. False if it is another's by now. Waits for room, if need be."""
        length = sum(part.nbytes for part in parts)
        size = -(-length // PAGE) * PAGE
        slot = NOWHERE
        try:
            slot = self._place(place, size)
            offset = slot * _STRIDE
            for part in parts:
                _all_of(os.pwrite, self.memory.descriptor, part, offset)
                offset += part.nbytes
            if self.finish(place, slot, length, asleep):
                return True
        except KeyError:
            pass
        except ResourceError:
            raise  # what is staged in its place is this process's to say
        except BaseException:
            self.let_go(place, slot)
            raise
        self.let_go(place, slot)
        return False

    def reserve(self, place: Place) -> tuple[int, int]:
        """A slot to make a batch in that this process has claimed, and its bytes; NOWHERE if there is none at once."""
        with self.table.change() as slots:
            before = slots.room.staged_bytes
            found = slots.reserve(place, self.process)
            if found is None:
                return NOWHERE, 0
            self._occupy(slots, found[1], before, slots.largest)
            return int(found[0]), int(slots.largest)

    def give_back(self, place: Place, slot: int) -> None:
        """A slot that was reserved is not used."""
        with self.table.change() as slots:
            slots.give_back(place, self.process, slot)

    def finish(self, place: Place, slot: int, length: int, asleep: float) -> bool:
        """A batch is in its slot. False if it is no longer this process's."""
        with self.table.change() as slots:
            slots.slept(asleep)
            return bool(slots.publish(place, self.process, slot, length))

    def _occupy(self, slots: Slots, given_back: list[int], before: int, size: int) -> None:
        """Give memory back that a slot is to have instead, and see that there is some."""
        for one in given_back:
            self.memory.discard(one * _STRIDE, _STRIDE)
        more = slots.room.staged_bytes - before
        if more > 0 and headroom_bytes() < more + _RESERVE_BYTES:
            raise ResourceError(
                f"not enough memory to stage another batch of {size:,} bytes for the group: lower group_bytes"
            )

    def let_go(self, place: Place, slot: int = NOWHERE) -> None:
        """Give up what this process has claimed."""
        with self.table.change() as slots:
            slots.let_go(place, self.process, slot)

    def _place(self, place: Place, size: int) -> int:
        began = time.monotonic()
        while True:
            ticket = self.table.ticket(WORK)
            with self.table.change() as slots:
                if self.member not in slots.members:
                    raise KeyError(place)
                before = slots.room.staged_bytes
                try:
                    found = slots.place(place, self.process, size)
                except ValueError:
                    raise ResourceError(
                        f"a batch has {size:,} bytes, and all batches of the group may use {slots.room.budget_bytes:,}: "
                        "raise group_bytes, where the group is opened"
                    ) from None
                if found is not None:
                    self._occupy(slots, found[1], before, size)
                    return int(found[0])
                is_reader = not slots.members[self.member].workers
            self.table.wait(WORK, ticket, LOOK_S)
            self.look_around()
            act = self.meanwhile() if is_reader else None
            if act is not None:
                act(began)

    def copy(self, batch: Batch, room: Bytes) -> None:
        """Copy the bytes of a staged batch."""
        _all_of(_read_into, self.memory.descriptor, room, batch.slot * _STRIDE)

    def close(self) -> None:
        """This process needs the group no more."""
        self.memory.close()
        self.table.close()


class StagedArea(Area):
    """The slots of a group, for an Outbox that fills one which was reserved."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(1, 1, memory=_Shifted(memory))
        self.stride = _STRIDE

    def offset(self, place: tuple[int, int]) -> int:
        """Where a slot begins."""
        return _SHIFT + place[1] * _STRIDE


class _Shifted(PrivateMemory):
    """The group's memory from an offset on; what is below is this process's own."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def map(self, offset: int, length: int) -> Mapping:
        return super().map(offset, length) if offset < _SHIFT else self._memory.map(offset - _SHIFT, length)


def _all_of(move: Callable[[int, Any, int], int], descriptor: int, content: Bytes, offset: int) -> None:
    """Not by a mapping: each process would pay for every page of every slot when it first touches it."""
    done = 0
    while done < content.nbytes:
        moved = move(descriptor, content[done:], offset + done)
        if not moved:
            raise MemberLost("a staged batch is shorter than it should be")
        done += moved


def _read_into(descriptor: int, room: Any, offset: int) -> int:
    return os.preadv(descriptor, [room], offset)
