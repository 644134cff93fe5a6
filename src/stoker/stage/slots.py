"""Who of a group is where, what is staged for whom, and what is to be prepared next: rules, and nothing else.

A member reads the batches of an epoch in their order; its *place* is the (epoch, step) that it reads next. A batch is
prepared when somebody needs it, by whoever asks for work, and goes when every member that is waited for is beyond it:

    (nobody has it) -- claim --> CLAIMED -- place --> COPYING -- publish --> READY -- the last one read it --> (gone)
                                    \\-- no room --> WAITING --/

That is all there is of fail-over, too: claims of the dead are forgotten, so that somebody needs those batches again. A
member that is *passed by*, because the others would not wait any longer or because it comes from an earlier place, is
not waited for: its own workers prepare what it lacks, until it has caught up.

Who waits for room waits for readers, never for workers: what is needed first gets the room of what is needed later, and a
worker gives up what it has prepared when something before it lacks a worker.

Nothing here knows clocks, processes or memory. Times and the living are told.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from stoker.stage.records import CLAIMED, COPYING, NOWHERE, READY, WAITING, Batch, Draw, Epoch, Member, Place, Reason
from stoker.stage.room import Process, Room

WORK, BATCHES = range(2)
"""What somebody may be waiting for: something to prepare or room for it, and batches to read."""
MOST_SLOTS = 256
_FEWEST_AHEAD = 16

IsAlive = Callable[[int, int], bool]


@dataclass(slots=True)
class Slots:
    """A group at one moment."""

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

    # ---- members

    def join(self, process: Process, label: str, descriptor: int, now: float, *, counts: bool = False) -> int:
        """A member comes, for the first epoch that has not begun; one that counts itself, for epoch 0."""
        number, self.joined = self.joined, self.joined + 1
        first = self.first_unbegun()
        member = Member(number, process, label, descriptor, 0 if counts else first, 0, now, counts=counts)
        member.is_passed = member.epoch < first
        self.members[number] = member
        return number

    def first_unbegun(self) -> int:
        """The first epoch of which nobody has read a batch."""
        leading = list(self._awaited()) or self.members.values()
        return max((member.epoch + (member.step > 0) for member in leading), default=0)

    def begin(self, number: int, now: float) -> int:
        """A member begins its next epoch; one that it is in the middle of is left. Which it is."""
        member = self.members[number]
        self.rest(number, now)
        if member.is_passed and not member.step and not member.counts:
            member.is_passed = False
            member.epoch = max(member.epoch, self.first_unbegun())
        member.is_reading, member.is_fresh = True, False
        self._move(member, member.place, now)
        self.news.add(WORK)
        return member.epoch

    def rest(self, number: int, now: float) -> None:
        """A member reads no more of the epoch that it is in the middle of, if it is; then it is before the next one."""
        member = self.members[number]
        if member.is_reading:
            member.is_reading = False
            self._move(member, (member.epoch + (member.step > 0), 0), now)
            self.news.add(WORK)

    def restore(self, number: int, place: Place, now: float) -> bool:
        """A member goes on from a place where it was before. False if it has to catch up: nobody waits for it then."""
        member = self.members[number]
        member.is_reading = member.is_fresh = False
        others = [other.place for other in self._awaited() if other is not member and not other.is_fresh]
        known = self.epochs.get(place[0])
        is_gone = known.gone > place[1] if known is not None else any(epoch > place[0] for epoch, _ in others)
        member.is_passed = is_gone and any(other > place for other in others)
        self._move(member, place, now)
        if not member.is_passed and all(epoch < place[0] for epoch, _ in others):
            for other in self.members.values():
                if other.is_fresh and not other.is_passed and other.place < place:
                    other.is_passed = other.counts
                    if not other.counts:
                        self._move(other, (self.first_unbegun(), 0), now)
        self.news |= {WORK, BATCHES}
        return not member.is_passed

    def pass_by(self, number: int) -> None:
        """Nobody waits for a member any more, nor for its workers, until it has caught up or begins another epoch."""
        member = self.members[number]
        self.passed_by += not member.is_passed
        member.is_passed = True
        for batch in [batch for batch in self.batches.values() if batch.member == number and batch.state != READY]:
            self._forget(batch, _may_be)
        self._clear()
        self.news |= {WORK, BATCHES}

    def wait_no_more(self, number: int) -> None:
        """What a member waits for may be taken away to make room: it does not come for it."""
        self.members[number].is_waiting = False
        self.news.add(WORK)

    def retire(self, number: int) -> None:
        """A member is about to leave: nobody waits for it, and its workers take on nothing new."""
        member = self.members[number]
        member.is_leaving = member.is_passed = True
        member.is_reading = member.is_waiting = False
        self._clear()
        self.news |= {WORK, BATCHES}

    def leave(self, number: int, is_alive: IsAlive) -> None:
        """A member has gone, one way or the other: what it had claimed is to be taken over."""
        member = self.members.pop(number, None)
        if member is None:
            return
        for batch in [batch for batch in self.batches.values() if batch.member == number and batch.state != READY]:
            self._forget(batch, is_alive)
        self._clear()
        self.news |= {WORK, BATCHES}

    def add_worker(self, number: int, process: Process) -> None:
        """A member has one more process that prepares batches."""
        self.members[number].workers.append(process)

    def sweep(self, is_alive: IsAlive) -> list[int]:
        """Whoever is dead has gone. Which members."""
        dead = [number for number, member in self.members.items() if not is_alive(*member.process)]
        for number in dead:
            self.leave(number, is_alive)
        for member in self.members.values():
            for process in [process for process in member.workers if not is_alive(*process)]:
                member.workers.remove(process)
                for batch in [one for one in self.batches.values() if one.process == process and one.state != READY]:
                    self._forget(batch, is_alive)
        for slot in [slot for slot, process in self.room.lost.items() if not is_alive(*process)]:
            del self.room.lost[slot]
            self.news.add(WORK)
        return dead

    def _forget(self, batch: Batch, is_alive: IsAlive) -> None:
        del self.batches[batch.place]
        self.again.add(batch.place)
        self.news |= {WORK, BATCHES}
        if batch.slot != NOWHERE and is_alive(*batch.process):
            self.room.lost[batch.slot] = batch.process

    # ---- preparing

    def claim(self, number: int, process: Process) -> Place | Draw | None:
        """What a worker of a member shall prepare, if there is anything: the first that is needed comes first."""
        place = self._choose(self.members[number])
        if place is None or isinstance(place, Draw):
            return place
        if place in self.again:
            self.again.remove(place)
            self.taken_over += 1
        elif place in self.dropped or place[1] < self.epochs[place[0]].gone or self._is_behind(place):
            self.dropped.discard(place)
            self.repeated += 1
        self.batches[place] = Batch(*place, number, process)
        return place

    def _is_behind(self, place: Place) -> bool:
        return place < (self._first() or place)

    def _choose(self, member: Member) -> Place | Draw | None:
        """What is needed first, of all that may be prepared now."""
        if member.is_leaving:
            return None
        if member.is_passed and member.is_reading:
            chosen = self._next_of(member.epoch, member.step, only=member)
            if chosen is not None:
                return chosen
        if member.is_passed and not member.workers:
            return None  # it prepares for itself, while it waits
        awaited = list(self._awaited())
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
        elif any(member.place == place and member.is_reading for member in self._awaited()):
            is_due = place == self._first() or self._has_room(epoch, half=self._is_ahead(epoch))
        else:
            is_due = self._has_processors() and self._has_room(epoch, half=self._is_ahead(epoch))
        return place if is_due else None

    def _has_processors(self) -> bool:
        """Whether one more worker would have a processor: more of them would only take turns, and push out caches.

        Nobody has to wait for this who needs a batch right now.
        """
        working = sum(batch.state in (CLAIMED, COPYING) for batch in self.batches.values())
        return working < max(1.0, self.cores / max(0.05, 1.0 - self.asleep))

    def slept(self, part: float) -> None:
        """A worker has slept for a part of the time that a batch took."""
        self.asleep += (min(1.0, max(0.0, part)) - self.asleep) / 8

    def draw(self, epoch: int, steps: int, digest: str) -> str:
        """Somebody has found out what an epoch consists of. The digest that holds."""
        self.news |= {WORK, BATCHES}
        return self.epochs.setdefault(epoch, Epoch(steps, digest)).digest

    def _is_ahead(self, epoch: int) -> bool:
        return any(member.epoch < epoch and member.is_reading for member in self._awaited())

    def _has_room(self, epoch: int, *, half: bool) -> bool:
        """Whether one more batch may be prepared before others were read; half of the room is for those behind."""
        if any(batch.state == WAITING for batch in self.batches.values()):
            return False
        workers = sum(len(member.workers) for member in self.members.values())
        most = min(MOST_SLOTS, max(_FEWEST_AHEAD, 3 * workers), max(1, self.room.budget_bytes // max(1, self.largest)))
        if half:
            return sum(batch.epoch >= epoch for batch in self.batches.values()) < most // 2
        return len(self.batches) < most

    def place(self, place: Place, process: Process, size: int) -> tuple[int, list[int]] | None:
        """A slot for a batch of so many bytes, and the slots whose memory is to be given back before; None: wait.

        Raises KeyError if it is to be let go: it is another's by now, or something else is to be done first; and ValueError
        if it never fits.
        """
        batch = self.batches[place]
        if batch.process != process or batch.state not in (CLAIMED, WAITING):
            raise KeyError(place)
        if size > self.room.budget_bytes:
            raise ValueError(size)
        if not self.members[batch.member].workers and self.is_ready(batch.member):
            raise KeyError(place)  # it is the reader who prepares, and what it has to read may be in the way
        self.largest = max(self.largest, size)
        self._make_room(place, size)
        found = self.room.find(size, self._taken())
        if found is None:
            batch.state = WAITING
            if self._is_out_of_turn(batch):
                raise KeyError(place)
            return None
        batch.slot, batch.state, batch.used = found[0], COPYING, size
        return found

    def reserve(self, place: Place, process: Process) -> tuple[int, list[int]] | None:
        """A slot for a batch whose size is not known yet, as large as the largest so far, if there is one at once."""
        batch = self.batches.get(place)
        if batch is None or (batch.process, batch.state) != (process, CLAIMED) or not self.largest:
            return None
        if any(other.state == WAITING for other in self.batches.values()):
            return None
        found = self.room.find(self.largest, self._taken())
        if found is not None:
            batch.slot, batch.state, batch.used = found[0], COPYING, self.largest
        return found

    def give_back(self, place: Place, process: Process, slot: int) -> None:
        """The slot that was reserved for a batch is too small for it."""
        batch = self.batches.get(place)
        if batch is not None and (batch.process, batch.slot, batch.state) == (process, slot, COPYING):
            batch.slot, batch.state = NOWHERE, CLAIMED
        if self.room.lost.get(slot) == process:
            del self.room.lost[slot]
        self.news.add(WORK)

    def _taken(self) -> set[int]:
        return {batch.slot for batch in self.batches.values() if batch.slot != NOWHERE}

    def _make_room(self, place: Place, size: int) -> None:
        """The first in line must not wait for those behind it, nor for what only those need whom nobody waits for."""
        first = self._first()
        others = [batch for batch in self.batches.values() if batch.state == READY and not self._is_held(batch)]
        later = [batch for batch in others if batch.place > place or first is None or batch.place < first]
        later.sort(key=lambda batch: (first is not None and batch.place >= first, *_backwards(batch.place)))
        is_first_in_line = all(
            batch.state == READY or batch.place >= place or (first is not None and batch.place < first <= place)
            for batch in self.batches.values()
        )
        if is_first_in_line and self.room.may_have(size, self._taken() - {batch.slot for batch in later}):
            for batch in later:
                if self.room.may_have(size, self._taken()):
                    break
                del self.batches[batch.place]
                self.dropped.add(batch.place)
                self.news.add(WORK)

    def _is_held(self, batch: Batch) -> bool:
        return any(member.holds(batch.place) for member in self.members.values())

    def _is_out_of_turn(self, batch: Batch) -> bool:
        """Whether its worker, while it waits for room, is missing where something comes first."""
        chosen = self._choose(self.members[batch.member])
        before = (chosen.epoch, NOWHERE) if isinstance(chosen, Draw) else chosen
        rivals = [one.place for one in self.batches.values() if one.state == WAITING and one.member == batch.member]
        return before is not None and before < batch.place == max(rivals)

    def publish(self, place: Place, process: Process, slot: int, length: int) -> bool:
        """A batch of so many bytes is ready. False: it is no longer this process's to publish, and to be let go."""
        batch = self.batches.get(place)
        if batch is None or (batch.process, batch.slot, batch.state) != (process, slot, COPYING):
            return False
        batch.state, batch.used = READY, length
        self.prepared += 1
        self.news.add(BATCHES)
        self._clear()
        return True

    def let_go(self, place: Place, process: Process, slot: int = NOWHERE) -> None:
        """Somebody gives up what it has claimed, and the slot that it was given."""
        batch = self.batches.get(place)
        if batch is not None and (batch.process, batch.slot) == (process, slot) and batch.state != READY:
            del self.batches[place]
            self.again.add(place)
        if self.room.lost.get(slot) == process:
            del self.room.lost[slot]
        self.news |= {WORK, BATCHES}

    # ---- reading

    def take(self, number: int) -> Batch | None:
        """The batch at a member's place, if it is ready. It stays where it is until `read`."""
        member = self.members[number]
        batch = self.batches.get(member.place)
        member.is_copying = batch is not None and batch.state == READY
        member.is_waiting = not member.is_copying
        return batch if member.is_copying else None

    def lacks_workers(self, number: int, *, is_late: bool) -> bool:
        """Whether a member without workers has to prepare batches itself: there are none, or they are stopped, perhaps."""
        member = self.members[number]
        has_begun = member.epoch in self.epochs and member.place in self.batches
        return member.is_passed or not any(m.workers for m in self.members.values()) or (is_late and not has_begun)

    def is_ready(self, number: int) -> bool:
        """Whether a member could read on."""
        batch = self.batches.get(self.members[number].place)
        return batch is not None and batch.state == READY

    def read(self, number: int, now: float) -> None:
        """A member has its copy of the batch at its place."""
        member = self.members[number]
        self._move(member, (member.epoch, member.step + 1), now)

    def is_over(self, number: int) -> bool:
        """Whether a member has read all batches of its epoch; then it is before the next one."""
        member = self.members[number]
        known = self.epochs.get(member.epoch)
        if known is None or member.step < known.steps:
            return False
        member.is_reading = False
        self._move(member, (member.epoch + 1, 0), member.moved_at)
        self.news.add(WORK)
        return True

    def _move(self, member: Member, place: Place, now: float) -> None:
        member.epoch, member.step = place
        member.moved_at, member.is_copying, member.is_waiting = now, False, False
        if member.is_passed and member.is_reading:
            behind = [other.place for other in self._awaited()]
            if member.place >= min(behind, default=member.place):
                member.is_passed = False  # it has caught up
        if any(batch.state == WAITING for batch in self.batches.values()):
            self.news.add(WORK)
        self._clear()

    def _first(self) -> Place | None:
        """What the last of those that are waited for reads next."""
        return min((member.place for member in self._awaited()), default=None)

    def _awaited(self) -> Iterator[Member]:
        return (member for member in self.members.values() if not member.is_passed)

    def _clear(self) -> None:
        """Let go of what nobody needs."""
        first = self._first()
        passed = [member for member in self.members.values() if member.is_passed]
        for batch in [batch for batch in self.batches.values() if batch.state == READY]:
            if (first is not None and batch.place >= first) or self._is_held(batch):
                continue
            if any(m.number == batch.member and m.place <= batch.place < m.furthest for m in passed):
                continue
            del self.batches[batch.place]
            self.news.add(WORK)
            known = self.epochs[batch.epoch]
            known.gone = max(known.gone, batch.step + 1)
        lowest = min((member.epoch for member in self.members.values()), default=None)
        for epoch in [epoch for epoch in self.epochs if lowest is not None and epoch < lowest]:
            if not any(batch.epoch == epoch for batch in self.batches.values()):
                del self.epochs[epoch]
        for places in (self.again, self.dropped):
            places.difference_update([place for place in places if lowest is None or place[0] < lowest])

    # ---- telling

    def reason(self, number: int) -> Reason:
        """What keeps a member waiting."""
        member = self.members[number]
        batch = self.batches.get(member.place)
        if batch is not None and batch.state != WAITING:
            return Reason("prepared", batch.member)
        last = min(self._awaited(), key=_place_of, default=member)
        if not self._has_room(member.epoch, half=self._is_ahead(member.epoch)):
            if last.place < member.place:
                return Reason("room", last.number)
            asleep = [other for other in self.members.values() if other.is_waiting and self.is_ready(other.number)]
            if asleep:
                return Reason("asleep", asleep[0].number)
        if batch is not None:
            return Reason("prepared", batch.member)
        return Reason("prepared" if any(m.workers for m in self.members.values()) else "nobody", NOWHERE)

    def values(self) -> list[Any]:
        """All of it, as plain values."""
        members = list(map(_member_row, self.members.values()))
        batches = list(map(_batch_row, self.batches.values()))
        epochs = [(epoch, e.steps, e.digest, e.gone) for epoch, e in self.epochs.items()]
        counts: list[float] = [self.joined, self.largest, self.prepared, self.repeated, self.taken_over, self.passed_by]
        counts += [self.cores, self.asleep]
        return [list(_room_row(self.room)), members, batches, epochs, list(self.again), list(self.dropped), *counts]

    @classmethod
    def of(cls, values: list[Any]) -> "Slots":
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


def _may_be(_pid: int, _started: int) -> bool:
    return True


def _backwards(place: Place) -> Place:
    return -place[0], -place[1]


LAYOUT = zlib.crc32(repr([kind.__slots__ for kind in (Room, Member, Batch, Epoch, Slots)]).encode())
"""What `values` consist of: another number, and `of` would not understand them."""
_room_row = attrgetter(*Room.__slots__)
_member_row = attrgetter(*Member.__slots__)
_batch_row = attrgetter(*Batch.__slots__)
_place_of = attrgetter("place")
