"""The state of a group at one moment, and questions about it.

Nothing here changes a group. The rules by which a group changes are in `rules`.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

from stoker.group.answers import Draw, Prepare, Task
from stoker.group.life import (
    AWAITED,
    BATCH_NAMES,
    CLAIMED,
    FILLING,
    LEAVING,
    PHASE_NAMES,
    READY,
    STANDING_NAMES,
    WAITING,
    WANTS_ROOM,
)
from stoker.group.records import NOWHERE, Epoch, Member, Point, Reason, StagedBatch
from stoker.group.room import StagingRoom
from stoker.live.groups import ASLEEP, NOBODY, PREPARED, ROOM

_MOST_SLOTS = 256
_FEWEST_AHEAD = 16


@dataclass(slots=True)
class GroupState:
    """A group's members, batches, epochs and slots."""

    room: StagingRoom
    members: dict[int, Member] = field(default_factory=dict)
    batches: dict[Point, StagedBatch] = field(default_factory=dict)
    epochs: dict[int, Epoch] = field(default_factory=dict)
    abandoned: set[Point] = field(default_factory=set)
    """Batches that were claimed by processes which died or gave them up."""
    dropped: set[Point] = field(default_factory=set)
    """Batches that were ready and had to make room."""
    joined: int = 0
    largest: int = 0
    """The largest batch so far, in bytes."""
    prepared: int = 0
    repeated: int = 0
    taken_over: int = 0
    passed_by: int = 0
    cores: float = 1e9
    """Processors that its workers share."""
    asleep: float = 0.0
    """The part of the time that a worker sleeps while it prepares a batch (waiting for storage, say), of late."""
    to_wake: set[int] = field(default_factory=set)
    """Which waiting processes the changes of this object concern: see `rules.WORK` and `rules.BATCHES`. Not kept."""

    # ---- where the members are

    def first(self) -> Point | None:
        """The point of the awaited member that is furthest behind."""
        return min(((one.epoch, one.step) for one in self.members.values() if one.standing == AWAITED), default=None)

    def last(self) -> Member | None:
        """The awaited member that is furthest behind."""
        return min(self.awaited(), key=_point_of, default=None)

    def awaited(self) -> Iterator[Member]:
        """The members that the others wait for."""
        return (member for member in self.members.values() if member.standing == AWAITED)

    def first_unbegun(self) -> int:
        """The first epoch that no member has begun to read."""
        leading = list(self.awaited()) or self.members.values()
        return max((member.epoch + (member.step > 0) for member in leading), default=0)

    def lacks_workers(self, number: int, *, is_late: bool) -> bool:
        """Whether a member without workers must prepare batches itself: the group has none, or they may be suspended."""
        member = self.members[number]
        has_begun = member.epoch in self.epochs and member.point in self.batches
        is_alone = member.standing != AWAITED
        return is_alone or not any(m.workers for m in self.members.values()) or (is_late and not has_begun)

    def ready_batch(self, number: int) -> StagedBatch | None:
        """The batch that a member reads next, if it is ready."""
        batch = self.batches.get(self.members[number].point)
        return batch if batch is not None and batch.state == READY else None

    def has_read_all(self, number: int) -> bool:
        """Whether a member has read all batches of its epoch."""
        member = self.members[number]
        known = self.epochs.get(member.epoch)
        return known is not None and member.step >= known.steps

    # ---- what is needed next

    def needed_next(self, member: Member) -> Task | None:
        """The most urgent task that a member's worker may do now."""
        if member.standing == LEAVING:
            return None
        is_alone = member.standing != AWAITED
        if is_alone and member.is_reading:
            needed = self._next_of(member.epoch, member.step, only=member)
            if needed is not None:
                return needed
        if is_alone and not member.workers:
            return None  # its reader prepares batches for itself, while it waits
        awaited = list(self.awaited())
        for epoch in sorted({other.epoch for other in awaited if other.is_reading}):
            needed = self._next_of(epoch, min(other.step for other in awaited if other.epoch == epoch))
            if needed is not None:
                return needed
        return None

    def _next_of(self, epoch: int, first: int, only: Member | None = None) -> Task | None:
        """The next task in an epoch that is read from a step on, by all members or by one only."""
        known = self.epochs.get(epoch)
        if known is None:
            return Draw(epoch)
        point = next(((epoch, step) for step in range(first, known.steps) if (epoch, step) not in self.batches), None)
        if point is None:
            return None
        if only is not None:
            is_due = point == only.point or (point < only.furthest and self._has_room(epoch, half=False))
        elif any(member.point == point and member.is_reading for member in self.awaited()):
            is_due = point == self.first() or self._has_room(epoch, half=self._is_ahead(epoch))
        else:
            is_due = self._has_processors() and self._has_room(epoch, half=self._is_ahead(epoch))
        return Prepare(point) if is_due else None

    def _has_processors(self) -> bool:
        """Whether there is a processor for one more worker. Without one, workers would only take turns and spoil caches.

        A batch that a member needs right now is prepared anyway.
        """
        working = sum(batch.state in (CLAIMED, FILLING) for batch in self.batches.values())
        return working < max(1.0, self.cores / max(0.05, 1.0 - self.asleep))

    def is_behind(self, point: Point) -> bool:
        """Whether a point is behind all awaited members."""
        return point < (self.first() or point)

    def is_out_of_turn(self, batch: StagedBatch) -> bool:
        """Whether a batch wants room while its worker has a more urgent task."""
        needed = self.needed_next(self.members[batch.member])
        if needed is None:
            return False
        before = (needed.epoch, NOWHERE) if isinstance(needed, Draw) else needed.point
        rivals = [one.point for one in self.batches.values() if one.state == WANTS_ROOM and one.member == batch.member]
        return before < batch.point == max(rivals)

    # ---- what there is room for

    def _is_ahead(self, epoch: int) -> bool:
        return any(member.epoch < epoch and member.is_reading for member in self.awaited())

    def _has_room(self, epoch: int, *, half: bool) -> bool:
        """Whether one more batch may be prepared before others are read. Half of the room is kept for members behind."""
        if any(batch.state == WANTS_ROOM for batch in self.batches.values()):
            return False
        workers = sum(len(member.workers) for member in self.members.values())
        most = min(_MOST_SLOTS, max(_FEWEST_AHEAD, 3 * workers), max(1, self.room.budget_bytes // max(1, self.largest)))
        if half:
            return sum(batch.epoch >= epoch for batch in self.batches.values()) < most // 2
        return len(self.batches) < most

    def taken(self) -> set[int]:
        """The slots that hold batches, or are being filled."""
        return {batch.slot for batch in self.batches.values() if batch.slot != NOWHERE}

    def is_held(self, point: Point) -> bool:
        """Whether a member copies a batch, or waits for it."""
        return any(member.holds(point) for member in self.members.values())

    # ---- why a member waits

    def reason(self, number: int) -> Reason:
        """What keeps a member waiting."""
        member = self.members[number]
        batch = self.batches.get(member.point)
        if batch is not None and batch.state != WANTS_ROOM:
            return Reason(PREPARED, batch.member)
        last = self.last() or member
        if not self._has_room(member.epoch, half=self._is_ahead(member.epoch)):
            if last.point < member.point:
                return Reason(ROOM, last.number)
            for other in self.members.values():
                if other.phase == WAITING and self.ready_batch(other.number) is not None:
                    return Reason(ASLEEP, other.number)
        if batch is not None:
            return Reason(PREPARED, batch.member)
        return Reason(PREPARED if any(m.workers for m in self.members.values()) else NOBODY, NOWHERE)

    # ---- as plain values

    def values(self) -> list[Any]:
        """The whole state as plain values."""
        members = list(map(_member_row, self.members.values()))
        batches = list(map(_batch_row, self.batches.values()))
        epochs = [(epoch, e.steps, e.digest, e.gone) for epoch, e in self.epochs.items()]
        counts: list[float] = [self.joined, self.largest, self.prepared, self.repeated, self.taken_over, self.passed_by]
        counts += [self.cores, self.asleep]
        return [list(_room_row(self.room)), members, batches, epochs, list(self.abandoned), list(self.dropped), *counts]

    @classmethod
    def of(cls, values: list[Any]) -> Self:
        """Undo `values`."""
        room, members, batches, epochs, abandoned, dropped, *counts = values
        return cls(
            StagingRoom(*room),
            {row[0]: Member(*row) for row in members},
            {row[:2]: StagedBatch(*row) for row in batches},
            {row[0]: Epoch(*row[1:]) for row in epochs},
            set(abandoned),
            set(dropped),
            *counts,
        )


_STATES = BATCH_NAMES, PHASE_NAMES, STANDING_NAMES
_FIELDS = [kind.__slots__ for kind in (StagingRoom, Member, StagedBatch, Epoch, GroupState)]
LAYOUT = zlib.crc32(repr((_STATES, _FIELDS)).encode())
"""Tells forms of `values` apart: `of` understands those of its own LAYOUT only."""
_room_row = attrgetter(*StagingRoom.__slots__)
_member_row = attrgetter(*Member.__slots__)
_batch_row = attrgetter(*StagedBatch.__slots__)
_point_of = attrgetter("point")
