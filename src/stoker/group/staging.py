"""Batches of a group in memory that its processes share, and how workers put them there.

The memory has no name. A process opens it through a living member (`/proc/PID/fd/N`, which only this user may open). It is
gone when the last member ends, even by a kill, and the size of /dev/shm does not bound it. The kernel says which processes
are alive; a process that waits asks the kernel from time to time.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import MemberLost, ResourceError
from stoker.group.answers import LetGo, Task, TooLarge, WaitForRoom
from stoker.group.life import LEAVING
from stoker.group.records import NOWHERE, Point, StagedBatch
from stoker.group.room import Slot
from stoker.group.rules import WORK, Group
from stoker.group.table import Table
from stoker.host import process
from stoker.host.headroom import headroom_bytes
from stoker.memory import PAGE, ByteArray, Mapping, Memory, PrivateMemory
from stoker.slots.area import Area

LOOK_S = 0.1
"""How often a process that waits asks the kernel which others are alive."""
_STRIDE = 1 << 38
_SLOTS = 1 << 12
LENGTH = _STRIDE * _SLOTS
_SHIFT = 1 << 61
_RESERVE_BYTES = 64 << 20
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where a member's workers find the group."""

    folder: str
    member: int
    pid: int
    descriptor: int


def default_bytes() -> int:
    """How much memory a group may use for batches without `group_bytes`."""
    return max(1 << 20, min(_MOST_BYTES, headroom_bytes() // 4))


class GroupStaging:
    """A group in one of its processes: its table, and its memory."""

    def __init__(self, address: GroupAddress) -> None:
        self.folder = Path(address.folder)
        self.member = address.member
        self.table = Table(self.folder / "table", Group.of)
        descriptor = address.descriptor
        if address.pid != os.getpid():
            descriptor = os.open(f"/proc/{address.pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self.memory = Memory(LENGTH, descriptor=descriptor)
        self.process = process.own()
        self.while_waiting: Callable[[], Callable[[float], object] | None] = lambda: None
        """A weak reference to what a reader calls from time to time while it waits for room, with the time since when."""
        self._looked_at = 0.0

    def look_around(self) -> None:
        """Remove members and workers that are dead."""
        self._looked_at = time.monotonic()
        with self.table.look() as group:
            everybody = {p for m in group.members.values() for p in (m.process, *m.workers)} | {*group.room.lost.values()}
        if not all(process.is_alive(*one) for one in everybody):
            with self.table.change() as group:
                group.sweep(process.is_alive)

    # ---- for processes that prepare

    def next_task(self, goes_on: Callable[[], bool]) -> Task | None:
        """Claim a task for this process. None when its member leaves or has gone."""
        while goes_on():
            if time.monotonic() - self._looked_at > LOOK_S:
                self.look_around()
            ticket = self.table.ticket(WORK)
            with self.table.change() as group:
                if self.member not in group.members or group.members[self.member].standing == LEAVING:
                    return None
                task: Task | None = group.claim(self.member, self.process)
            if task is not None:
                return task
            self.table.wait(WORK, ticket, LOOK_S)
            self.look_around()
        return None

    def draw(self, epoch: int, steps: int, digest: str) -> str:
        """Tell the length and digest of an epoch. Returns the digest that holds in the group."""
        with self.table.change() as group:
            return str(group.draw(epoch, steps, digest))

    def publish(self, point: Point, parts: list[ByteArray], asleep: float = 0.0) -> bool:
        """Stage a batch that this process has claimed; wait for room if needed. False if the batch had to be let go."""
        length = sum(part.nbytes for part in parts)
        number = NOWHERE
        try:
            answer = self._wait_for_slot(point, -(-length // PAGE) * PAGE)
            if isinstance(answer, Slot):
                number = answer.number
                offset = number * _STRIDE
                for part in parts:
                    _all_of(os.pwrite, self.memory.descriptor, part, offset)
                    offset += part.nbytes
                if self.finish(point, number, length, asleep):
                    return True
        except ResourceError:
            raise  # the claim is kept: this process stages the error in place of the batch
        except BaseException:
            self.let_go(point, number)
            raise
        self.let_go(point, number)
        return False

    def reserve(self, point: Point) -> Slot | None:
        """A slot in which to make a batch that this process has claimed; None if no slot is free at once."""
        with self.table.change() as group:
            before = group.room.staged_bytes
            slot: Slot | None = group.reserve(point, self.process)
            if slot is not None:
                self._use(group, slot, before)
            return slot

    def give_back(self, point: Point, slot: int) -> None:
        """Free a reserved slot that is not used."""
        with self.table.change() as group:
            group.give_back(point, self.process, slot)

    def finish(self, point: Point, slot: int, length: int, asleep: float) -> bool:
        """Say that a batch is in its slot. False if this process has lost its claim."""
        with self.table.change() as group:
            group.slept(asleep)
            return bool(group.publish(point, self.process, slot, length))

    def _use(self, group: Group, slot: Slot, before: int) -> None:
        """Give back the memory of the slots that this one replaces, and check that there is enough for it."""
        for one in slot.given_back:
            self.memory.discard(one * _STRIDE, _STRIDE)
        self.memory.reserve(slot.number * _STRIDE, slot.size)
        more = group.room.staged_bytes - before
        if more > 0 and headroom_bytes() < more + _RESERVE_BYTES:
            raise ResourceError(
                f"not enough memory to stage another batch of {slot.size:,} bytes for the group: lower group_bytes"
            )

    def let_go(self, point: Point, slot: int = NOWHERE) -> None:
        """Give up what this process has claimed."""
        with self.table.change() as group:
            group.let_go(point, self.process, slot)

    def _wait_for_slot(self, point: Point, size: int) -> Slot | LetGo:
        began = time.monotonic()
        while True:
            ticket = self.table.ticket(WORK)
            with self.table.change() as group:
                if self.member not in group.members:
                    return LetGo()
                before = group.room.staged_bytes
                match group.assign_slot(point, self.process, size):
                    case Slot() as slot:
                        self._use(group, slot, before)
                        return slot
                    case LetGo() as answer:
                        return answer
                    case TooLarge(budget_bytes):
                        raise ResourceError(
                            f"a batch has {size:,} bytes, and all batches of the group may use {budget_bytes:,}: "
                            "raise group_bytes, where the group is opened"
                        )
                    case WaitForRoom():
                        is_reader = not group.members[self.member].workers
            self.table.wait(WORK, ticket, LOOK_S)
            self.look_around()
            act = self.while_waiting() if is_reader else None
            if act is not None:
                act(began)

    def copy(self, batch: StagedBatch, room: ByteArray) -> None:
        """Copy the bytes of a staged batch into memory of this process."""
        _all_of(_read_into, self.memory.descriptor, room, batch.slot * _STRIDE)

    def close(self) -> None:
        """Close the table and the memory in this process."""
        self.memory.close()
        self.table.close()


class StagedArea(Area):
    """The slots of a group, for an Outbox that fills a reserved one."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(1, 1, memory=_Shifted(memory))
        self.stride = _STRIDE

    def offset(self, place: tuple[int, int]) -> int:
        """Where a slot begins."""
        return _SHIFT + place[1] * _STRIDE


class _Shifted(PrivateMemory):
    """The group's memory, moved up by `_SHIFT`; below that is private memory of this process."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def map(self, offset: int, length: int) -> Mapping:
        return super().map(offset, length) if offset < _SHIFT else self._memory.map(offset - _SHIFT, length)


def _all_of(move: Callable[[int, Any, int], int], descriptor: int, content: ByteArray, offset: int) -> None:
    """Read or write all bytes. A mapping would cost each process a page fault for every page."""
    done = 0
    while done < content.nbytes:
        moved = move(descriptor, content[done:], offset + done)
        if not moved:
            raise MemberLost("a staged batch is shorter than it should be")
        done += moved


def _read_into(descriptor: int, room: Any, offset: int) -> int:
    return os.preadv(descriptor, [room], offset)
