"""Who of a group is where, what is staged for whom, and what is to be prepared next: rules, and nothing else.

A member reads the batches of an epoch in their order; its *place* is the (epoch, step) that it reads next. A batch is
prepared when somebody needs it, by whoever asks for work, and goes when every member that is waited for is beyond it:

    (nobody has it) -- claim --> CLAIMED -- place --> COPYING -- publish --> READY -- the last one read it --> (gone)

That is all there is of fail-over, too: claims of the dead are forgotten, so that somebody needs those batches again. A
member that is *passed by*, because the others would not wait any longer or because it comes from an earlier place, is
not waited for: its own workers prepare what it lacks, until it has caught up.

Nothing here knows clocks, processes or memory. Times and the living are told.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

CLAIMED, COPYING, READY = range(3)
WORK, BATCHES = range(2)
"""What somebody may be waiting for: something to prepare or room for it, and batches to read."""
NOWHERE = -1
MOST_SLOTS = 256
_FEWEST_AHEAD = 16

Place = tuple[int, int]
"""An epoch, and a step in it."""
Process = tuple[int, int]
"""A pid, and when that process was started."""
IsAlive = Callable[[int, int], bool]


@dataclass(slots=True)
class Member:
    """A loader of some job."""

    number: int
    process: Process
    label: str
    descriptor: int
    """Of the group's memory, in that process."""
    epoch: int
    step: int
    moved_at: float
    """When its place last changed."""
    is_reading: bool = False
    """Whether it is within an epoch."""
    is_fresh: bool = True
    """Whether it has never begun one."""
    is_passed: bool = False
    """Whether nobody waits for it."""
    is_copying: bool = False
    """Whether it is just looking at the batch at its place."""
    workers: list[Process] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """What it reads next."""
        return self.epoch, self.step


@dataclass(slots=True)
class Batch:
    """A batch that somebody has claimed."""

    epoch: int
    step: int
    member: int
    process: Process
    """Who prepares it, or did."""
    state: int = CLAIMED
    slot: int = NOWHERE
    used: int = 0

    @property
    def place(self) -> Place:
        """Where it belongs."""
        return self.epoch, self.step


@dataclass(slots=True)
class Epoch:
    """What all agree on."""

    steps: int
    digest: str
    """Of the order of its samples."""
    gone: int = 0
    """Batches before this step were staged, and are not any more."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Somebody must say first how many batches an epoch has."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a member has to wait."""

    kind: str
    """"prepared": somebody is at it; "room": nothing goes on before another has read; "nobody": there is no worker."""
    member: int


@dataclass(slots=True)
class Slots:
    """A group at one moment."""

    budget_bytes: int
    members: dict[int, Member] = field(default_factory=dict)
    batches: dict[Place, Batch] = field(default_factory=dict)
    epochs: dict[int, Epoch] = field(default_factory=dict)
    capacities: list[int] = field(default_factory=list)
    """Bytes that each slot occupies."""
    lost: dict[int, Process] = field(default_factory=dict)
    """Slots that a process without a member may still write to."""
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
    most_bytes: int = 0
    """The most that was ever occupied."""
    news: set[int] = field(default_factory=set)
    """What was made possible just now, by what was done with this very object."""

    # ---- members

    def join(self, process: Process, label: str, descriptor: int, now: float) -> int:
        """A member comes, for the first epoch that has not begun."""
        number, self.joined = self.joined, self.joined + 1
        self.members[number] = Member(number, process, label, descriptor, self.first_unbegun(), 0, now)
        return number

    def first_unbegun(self) -> int:
        """The first epoch of which nobody has read a batch."""
        leading = list(self._awaited()) or self.members.values()
        return max((member.epoch + (member.step > 0) for member in leading), default=0)

    def begin(self, number: int, now: float) -> int:
        """A member begins its next epoch; one that it is in the middle of is left. Which it is."""
        member = self.members[number]
        if member.is_reading and member.step:
            self._move(member, (member.epoch + 1, 0), now)
        if member.is_passed and not member.step:
            member.is_passed = False
            self._move(member, (max(member.epoch, self.first_unbegun()), 0), now)
        member.is_reading, member.is_fresh, member.moved_at = True, False, now
        self.news.add(WORK)
        return member.epoch

    def restore(self, number: int, place: Place, now: float) -> bool:
        """A member goes on from a place where it was before. False if it has to catch up: nobody waits for it then."""
        member = self.members[number]
        was_passed, member.is_passed = member.is_passed, True
        others = [other.place for other in self._awaited()]
        latest = max((epoch for epoch, _ in others), default=-1)
        known = self.epochs.get(place[0])
        is_too_late = known.gone > place[1] if known is not None else any(other > place for other in others)
        member.is_passed = is_too_late
        self._move(member, place, now)
        if not is_too_late and place[0] > latest:
            for other in self.members.values():
                if other.is_fresh and other is not member and not other.is_passed and other.place < place:
                    self._move(other, (self.first_unbegun(), 0), now)
        if was_passed != is_too_late:
            self._clear()
        self.news |= {WORK, BATCHES}
        return not is_too_late

    def pass_by(self, number: int) -> None:
        """Nobody waits for a member any more, until it has caught up or begins another epoch."""
        member = self.members.get(number)
        if member is not None and not member.is_passed:
            member.is_passed = True
            self.passed_by += 1
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
        for slot in [slot for slot, process in self.lost.items() if not is_alive(*process)]:
            del self.lost[slot]
            self.news.add(WORK)
        return dead

    def _forget(self, batch: Batch, is_alive: IsAlive) -> None:
        del self.batches[batch.place]
        self.again.add(batch.place)
        self.news |= {WORK, BATCHES}
        if batch.slot != NOWHERE and is_alive(*batch.process):
            self.lost[batch.slot] = batch.process

    # ---- preparing

    def claim(self, number: int, process: Process) -> Place | Draw | None:
        """What a worker of a member shall prepare, if there is anything: the first that is needed comes first."""
        member = self.members[number]
        for epoch, first, only_next in self._needs(member):
            known = self.epochs.get(epoch)
            if known is None:
                return Draw(epoch)
            found = next((step for step in range(first, known.steps) if (epoch, step) not in self.batches), None)
            if found is None:
                continue
            if only_next and (found - first >= only_next or not self._has_room(epoch, half=False)) and found != first:
                continue
            if (
                not only_next
                and not self._is_next((epoch, found))
                and not self._has_room(epoch, half=self._is_ahead(epoch))
            ):
                continue
            return self._claim((epoch, found), number, process)
        return None

    def _needs(self, member: Member) -> Iterator[tuple[int, int, int]]:
        """Epochs that somebody reads, the first step of each that is needed, and how far to go if only one needs it."""
        if member.is_passed and member.is_reading:
            yield member.epoch, member.step, 2 * len(member.workers) + 2
        awaited = list(self._awaited())
        for epoch in sorted({other.epoch for other in awaited if other.is_reading}):
            yield epoch, min(other.step for other in awaited if other.epoch == epoch), 0

    def _claim(self, place: Place, number: int, process: Process) -> Place:
        if place in self.again:
            self.again.remove(place)
            self.taken_over += 1
        elif place in self.dropped or place[1] < self.epochs[place[0]].gone or self._is_behind(place):
            self.dropped.discard(place)
            self.repeated += 1
        self.batches[place] = Batch(*place, number, process)
        return place

    def _is_behind(self, place: Place) -> bool:
        return place < min((member.place for member in self._awaited()), default=place)

    def draw(self, epoch: int, steps: int, digest: str) -> str:
        """Somebody has found out what an epoch consists of. The digest that holds."""
        self.news |= {WORK, BATCHES}
        return self.epochs.setdefault(epoch, Epoch(steps, digest)).digest

    def _is_next(self, place: Place) -> bool:
        """Whether the last of those that are waited for reads this very batch next."""
        return place == min(member.place for member in self._awaited())

    def _is_ahead(self, epoch: int) -> bool:
        return any(member.epoch < epoch and member.is_reading for member in self._awaited())

    def _has_room(self, epoch: int, *, half: bool) -> bool:
        """Whether one more batch may be prepared before others were read; half of the room is for those behind."""
        workers = sum(len(member.workers) for member in self.members.values())
        most = min(MOST_SLOTS, max(_FEWEST_AHEAD, 3 * workers), max(1, self.budget_bytes // max(1, self.largest)))
        if half:
            return sum(batch.epoch >= epoch for batch in self.batches.values()) < most // 2
        return len(self.batches) < most

    def place(self, place: Place, process: Process, size: int) -> tuple[int, list[int]] | None:
        """A slot for a batch of so many bytes, and the slots whose memory is to be given back before; None: wait.

        Raises KeyError if the batch is another's by now, and ValueError if it never fits.
        """
        batch = self.batches[place]
        if batch.process != process or batch.state == READY:
            raise KeyError(place)
        if size > self.budget_bytes:
            raise ValueError(size)
        self.largest = max(self.largest, size)
        while True:
            found = self._find_room(size)
            if found is not None:
                break
            # The first in line must not wait for those behind it.
            behind = max((b for b in self.batches.values() if self._may_be_dropped(b, place)), key=_place_of, default=None)
            if behind is None:
                return None
            del self.batches[behind.place]
            self.dropped.add(behind.place)
            self.news.add(WORK)
        slot, given_back = found
        batch.slot, batch.state, batch.used = slot, COPYING, size
        self.most_bytes = max(self.most_bytes, sum(self.capacities))
        return slot, given_back

    def _may_be_dropped(self, batch: Batch, before: Place) -> bool:
        if batch.state != READY or batch.place <= before or not self._is_lowest(before):
            return False
        return not any(member.is_copying and member.place == batch.place for member in self.members.values())

    def _is_lowest(self, place: Place) -> bool:
        return all(batch.state == READY or batch.place >= place for batch in self.batches.values())

    def _find_room(self, size: int) -> tuple[int, list[int]] | None:
        taken = {batch.slot for batch in self.batches.values()} | self.lost.keys()
        free = [slot for slot in range(len(self.capacities)) if slot not in taken]
        fitting = [slot for slot in free if self.capacities[slot] >= size]
        if fitting:
            return min(fitting, key=lambda slot: (self.capacities[slot], slot)), []
        missing = sum(self.capacities) + size - self.budget_bytes
        given_back = []
        for slot in sorted(free, key=lambda slot: -self.capacities[slot]):
            if missing <= 0:
                break
            if self.capacities[slot]:
                missing -= self.capacities[slot]
                given_back.append(slot)
        grown = next((slot for slot in free if slot not in given_back), given_back[0] if given_back else None)
        if missing > (self.capacities[grown] if grown is not None and grown not in given_back else 0):
            return None
        for slot in given_back:
            self.capacities[slot] = 0
        if grown is None:
            grown = len(self.capacities)
            self.capacities.append(0)
        self.capacities[grown] = size
        return grown, given_back

    def publish(self, place: Place, process: Process, length: int) -> bool:
        """A batch of so many bytes is ready. False: it is no longer this process's to publish."""
        batch = self.batches.get(place)
        if batch is None or batch.process != process or batch.state != COPYING:
            return False
        batch.state, batch.used = READY, length
        self.prepared += 1
        self.news.add(BATCHES)
        self._clear()
        return True

    def let_go(self, place: Place, process: Process) -> None:
        """Somebody gives up what it has claimed; and a slot that it may have written to without having it."""
        batch = self.batches.get(place)
        if batch is not None and batch.process == process and batch.state != READY:
            del self.batches[place]
            self.again.add(place)
        self.news.add(WORK)
        for slot in [slot for slot, writer in self.lost.items() if writer == process]:
            del self.lost[slot]

    # ---- reading

    def take(self, number: int) -> Batch | None:
        """The batch at a member's place, if it is ready. It stays where it is until `read`."""
        member = self.members[number]
        batch = self.batches.get(member.place)
        if batch is None or batch.state != READY:
            return None
        member.is_copying = True
        return batch

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
        return True

    def _move(self, member: Member, place: Place, now: float) -> None:
        member.epoch, member.step = place
        member.moved_at, member.is_copying = now, False
        if member.is_passed and member.is_reading:
            behind = [other.place for other in self._awaited()]
            if member.place >= min(behind, default=member.place):
                member.is_passed = False  # it has caught up
        self._clear()

    def _awaited(self) -> Iterator[Member]:
        return (member for member in self.members.values() if not member.is_passed)

    def _clear(self) -> None:
        """Let go of what nobody needs."""
        first = min((member.place for member in self._awaited()), default=None)
        passed = [member for member in self.members.values() if member.is_passed]
        looked_at = {member.place for member in self.members.values() if member.is_copying}
        for batch in [batch for batch in self.batches.values() if batch.state == READY]:
            if (first is not None and batch.place >= first) or batch.place in looked_at:
                continue
            if any(m.number == batch.member and m.epoch == batch.epoch and m.step <= batch.step for m in passed):
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
        if batch is not None:
            return Reason("prepared", batch.member)
        last = min(self._awaited(), key=lambda other: other.place, default=member)
        if last.place < member.place and not self._has_room(member.epoch, half=self._is_ahead(member.epoch)):
            return Reason("room", last.number)
        return Reason("prepared" if any(m.workers for m in self.members.values()) else "nobody", NOWHERE)

    @property
    def staged_bytes(self) -> int:
        """What all slots occupy."""
        return sum(self.capacities)

    def values(self) -> list[Any]:
        """All of it, as plain values."""
        members = list(map(_member_row, self.members.values()))
        batches = list(map(_batch_row, self.batches.values()))
        epochs = [(epoch, e.steps, e.digest, e.gone) for epoch, e in self.epochs.items()]
        lists = [self.capacities, list(self.lost.items()), list(self.again), list(self.dropped)]
        counts = [self.joined, self.largest, self.prepared, self.repeated, self.taken_over, self.passed_by, self.most_bytes]
        return [self.budget_bytes, members, batches, epochs, *lists, *counts]

    @classmethod
    def of(cls, values: list[Any]) -> "Slots":
        """Undo `values`."""
        budget, members, batches, epochs, capacities, lost, again, dropped, *counts = values
        return cls(
            budget,
            {row[0]: Member(*row) for row in members},
            {row[:2]: Batch(*row) for row in batches},
            {row[0]: Epoch(*row[1:]) for row in epochs},
            capacities,
            dict(lost),
            set(again),
            set(dropped),
            *counts,
        )


_member_row = attrgetter(*Member.__slots__)
_batch_row = attrgetter(*Batch.__slots__)
_place_of = attrgetter("place")
