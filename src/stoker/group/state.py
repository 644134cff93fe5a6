"""A group at one moment: what is known of it, and what follows from that. The rules by which it changes are in `slots`."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

from stoker.group.records import CLAIMED, COPYING, NOWHERE, READY, WAITING, Batch, Draw, Epoch, Member, Place, Reason
from stoker.group.room import Room
from stoker.live.groups import ASLEEP, NOBODY, PREPARED, ROOM

_MOST_SLOTS = 256
_FEWEST_AHEAD = 16


@dataclass(slots=True)
class State:
    """What is known of a group."""

    room: Room
    members: dict[int, Member] = field(default_factory=dict)
    batches: dict[Place, Batch] = field(default_factory=dict)
    epochs: dict[int, Epoch] = field(default_factory=dict)
    again: set[Place] = field(default_factory=set)
    """Batches that were claimed by the dead."""
    dropped: set[Place] = field(default_factory=set)
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
    """The part of the time that a worker sleeps while it prepares a batch, waiting for storage perhaps, of late."""
    news: set[int] = field(default_factory=set)
    """What was made possible just now, by what was done with this very object."""

    # ---- who is where

    def first(self) -> Place | None:
        """What the last of those that are waited for reads next."""
        return min((member.place for member in self.awaited()), default=None)

    def last(self) -> Member | None:
        """The one of those that are waited for that is furthest behind."""
        return min(self.awaited(), key=_place_of, default=None)

    def awaited(self) -> Iterator[Member]:
        """Those that are waited for."""
        return (member for member in self.members.values() if not member.is_passed)

    def first_unbegun(self) -> int:
        """The first epoch of which nobody has read a batch."""
        leading = list(self.awaited()) or self.members.values()
        return max((member.epoch + (member.step > 0) for member in leading), default=0)

    def lacks_workers(self, number: int, *, is_late: bool) -> bool:
        """Whether a member without workers has to prepare batches itself: there are none, or they are stopped, perhaps."""
        member = self.members[number]
        has_begun = member.epoch in self.epochs and member.place in self.batches
        return member.is_passed or not any(m.workers for m in self.members.values()) or (is_late and not has_begun)

    def is_ready(self, number: int) -> bool:
        """Whether a member could read on."""
        batch = self.batches.get(self.members[number].place)
        return batch is not None and batch.state == READY

    # ---- what is needed next

    def choose(self, member: Member) -> Place | Draw | None:
        """What is needed first, of all that may be prepared now."""
        if member.is_leaving:
            return None
        if member.is_passed and member.is_reading:
            chosen = self._next_of(member.epoch, member.step, only=member)
            if chosen is not None:
                return chosen
        if member.is_passed and not member.workers:
            return None  # it prepares for itself, while it waits
        awaited = list(self.awaited())
        for epoch in sorted({other.epoch for other in awaited if other.is_reading}):
            chosen = self._next_of(epoch, min(other.step for other in awaited if other.epoch == epoch))
            if chosen is not None:
                return chosen
        return None

    def _next_of(self, epoch: int, first: int, only: Member | None = None) -> Place | Draw | None:
        """What is next to prepare of an epoch that is read from a step on, perhaps by one member only."""
        known = self.epochs.get(epoch)
        if known is None:
            return Draw(epoch)
        place = next(((epoch, step) for step in range(first, known.steps) if (epoch, step) not in self.batches), None)
        if place is None:
            return None
        if only is not None:
            is_due = place == only.place or (place < only.furthest and self._has_room(epoch, half=False))
        elif any(member.place == place and member.is_reading for member in self.awaited()):
            is_due = place == self.first() or self._has_room(epoch, half=self._is_ahead(epoch))
        else:
            is_due = self._has_processors() and self._has_room(epoch, half=self._is_ahead(epoch))
        return place if is_due else None

    def _has_processors(self) -> bool:
        """Whether one more worker would have a processor: more of them would only take turns, and push out caches.

        Nobody has to wait for this who needs a batch right now.
        """
        working = sum(batch.state in (CLAIMED, COPYING) for batch in self.batches.values())
        return working < max(1.0, self.cores / max(0.05, 1.0 - self.asleep))

    def is_behind(self, place: Place) -> bool:
        """Whether all that are waited for are beyond a place."""
        return place < (self.first() or place)

    def is_out_of_turn(self, batch: Batch) -> bool:
        """Whether its worker, while it waits for room, is missing where something comes first."""
        chosen = self.choose(self.members[batch.member])
        before = (chosen.epoch, NOWHERE) if isinstance(chosen, Draw) else chosen
        rivals = [one.place for one in self.batches.values() if one.state == WAITING and one.member == batch.member]
        return before is not None and before < batch.place == max(rivals)

    # ---- what there is room for

    def _is_ahead(self, epoch: int) -> bool:
        return any(member.epoch < epoch and member.is_reading for member in self.awaited())

    def _has_room(self, epoch: int, *, half: bool) -> bool:
        """Whether one more batch may be prepared before others were read; half of the room is for those behind."""
        if any(batch.state == WAITING for batch in self.batches.values()):
            return False
        workers = sum(len(member.workers) for member in self.members.values())
        most = min(_MOST_SLOTS, max(_FEWEST_AHEAD, 3 * workers), max(1, self.room.budget_bytes // max(1, self.largest)))
        if half:
            return sum(batch.epoch >= epoch for batch in self.batches.values()) < most // 2
        return len(self.batches) < most

    def taken(self) -> set[int]:
        """The slots that batches lie in, or are to."""
        return {batch.slot for batch in self.batches.values() if batch.slot != NOWHERE}

    def is_held(self, batch: Batch) -> bool:
        """Whether somebody is at a batch, or waits for it."""
        return any(member.holds(batch.place) for member in self.members.values())

    # ---- telling

    def reason(self, number: int) -> Reason:
        """What keeps a member waiting."""
        member = self.members[number]
        batch = self.batches.get(member.place)
        if batch is not None and batch.state != WAITING:
            return Reason(PREPARED, batch.member)
        last = self.last() or member
        if not self._has_room(member.epoch, half=self._is_ahead(member.epoch)):
            if last.place < member.place:
                return Reason(ROOM, last.number)
            asleep = [other for other in self.members.values() if other.is_waiting and self.is_ready(other.number)]
            if asleep:
                return Reason(ASLEEP, asleep[0].number)
        if batch is not None:
            return Reason(PREPARED, batch.member)
        return Reason(PREPARED if any(m.workers for m in self.members.values()) else NOBODY, NOWHERE)

    def values(self) -> list[Any]:
        """All of it, as plain values."""
        members = list(map(_member_row, self.members.values()))
        batches = list(map(_batch_row, self.batches.values()))
        epochs = [(epoch, e.steps, e.digest, e.gone) for epoch, e in self.epochs.items()]
        counts: list[float] = [self.joined, self.largest, self.prepared, self.repeated, self.taken_over, self.passed_by]
        counts += [self.cores, self.asleep]
        return [list(_room_row(self.room)), members, batches, epochs, list(self.again), list(self.dropped), *counts]

    @classmethod
    def of(cls, values: list[Any]) -> Self:
        """Undo `values`."""
        room, members, batches, epochs, again, dropped, *counts = values
        return cls(
            Room(*room),
            {row[0]: Member(*row) for row in members},
            {row[:2]: Batch(*row) for row in batches},
            {row[0]: Epoch(*row[1:]) for row in epochs},
            set(again),
            set(dropped),
            *counts,
        )


LAYOUT = zlib.crc32(repr([kind.__slots__ for kind in (Room, Member, Batch, Epoch, State)]).encode())
"""What `values` consist of: another number, and `of` would not understand them."""
_room_row = attrgetter(*Room.__slots__)
_member_row = attrgetter(*Member.__slots__)
_batch_row = attrgetter(*Batch.__slots__)
_place_of = attrgetter("place")
