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

Nothing here knows clocks, processes or memory. Times and the living are told. What only asks and changes nothing is in
`state`.
"""

from collections.abc import Callable

from stoker.group.records import CLAIMED, COPYING, NOWHERE, READY, WAITING, Batch, Draw, Epoch, Member, Place
from stoker.group.room import Process
from stoker.group.state import State

WORK, BATCHES = range(2)
"""What somebody may be waiting for: something to prepare or room for it, and batches to read."""

IsAlive = Callable[[int, int], bool]


class Slots(State):
    """A group at one moment, and what may happen to it."""

    __slots__ = ()

    # ---- members

    def join(self, process: Process, label: str, descriptor: int, now: float, *, counts: bool = False) -> int:
        """A member comes, for the first epoch that has not begun; one that counts itself, for epoch 0."""
        number, self.joined = self.joined, self.joined + 1
        first = self.first_unbegun()
        member = Member(number, process, label, descriptor, 0 if counts else first, 0, now, counts=counts)
        member.is_passed = member.epoch < first
        self.members[number] = member
        return number

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
        others = [other.place for other in self.awaited() if other is not member and not other.is_fresh]
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
        place = self.choose(self.members[number])
        if place is None or isinstance(place, Draw):
            return place
        if place in self.again:
            self.again.remove(place)
            self.taken_over += 1
        elif place in self.dropped or place[1] < self.epochs[place[0]].gone or self.is_behind(place):
            self.dropped.discard(place)
            self.repeated += 1
        self.batches[place] = Batch(*place, number, process)
        return place

    def slept(self, part: float) -> None:
        """A worker has slept for a part of the time that a batch took."""
        self.asleep += (min(1.0, max(0.0, part)) - self.asleep) / 8

    def draw(self, epoch: int, steps: int, digest: str) -> str:
        """Somebody has found out what an epoch consists of. The digest that holds."""
        self.news |= {WORK, BATCHES}
        return self.epochs.setdefault(epoch, Epoch(steps, digest)).digest

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
        found = self.room.find(size, self.taken())
        if found is None:
            batch.state = WAITING
            if self.is_out_of_turn(batch):
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
        found = self.room.find(self.largest, self.taken())
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

    def _make_room(self, place: Place, size: int) -> None:
        """The first in line must not wait for those behind it, nor for what only those need whom nobody waits for."""
        first = self.first()
        others = [batch for batch in self.batches.values() if batch.state == READY and not self.is_held(batch)]
        later = [batch for batch in others if batch.place > place or first is None or batch.place < first]
        later.sort(key=lambda batch: (first is not None and batch.place >= first, *_backwards(batch.place)))
        is_first_in_line = all(
            batch.state == READY or batch.place >= place or (first is not None and batch.place < first <= place)
            for batch in self.batches.values()
        )
        if is_first_in_line and self.room.may_have(size, self.taken() - {batch.slot for batch in later}):
            for batch in later:
                if self.room.may_have(size, self.taken()):
                    break
                del self.batches[batch.place]
                self.dropped.add(batch.place)
                self.news.add(WORK)

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
            behind = [other.place for other in self.awaited()]
            if member.place >= min(behind, default=member.place):
                member.is_passed = False  # it has caught up
        if any(batch.state == WAITING for batch in self.batches.values()):
            self.news.add(WORK)
        self._clear()

    def _clear(self) -> None:
        """Let go of what nobody needs."""
        first = self.first()
        passed = [member for member in self.members.values() if member.is_passed]
        for batch in [batch for batch in self.batches.values() if batch.state == READY]:
            if (first is not None and batch.place >= first) or self.is_held(batch):
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


def _may_be(_pid: int, _started: int) -> bool:
    return True


def _backwards(place: Place) -> Place:
    return -place[0], -place[1]
