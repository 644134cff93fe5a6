"""Which member of a group reads what, what is staged, and what is prepared next. Pure rules.

A member reads the batches of an epoch in their order; its *point* is the (epoch, step) that it reads next. A batch is
prepared when a member needs it, by any worker that asks for a task, and goes when every awaited member is beyond it:

    (not there) -- claim --> CLAIMED -- assign_slot --> FILLING -- publish --> READY -- all have read it --> (gone)
                                \\-- no room --> WANTS_ROOM --/

    CLAIMED -- reserve --> FILLING -- give_back --> CLAIMED      a slot is tried before the size of the batch is known
    CLAIMED, WANTS_ROOM or FILLING -- let_go, its process died --> (not there)
    READY -- an earlier batch needs its room --> (not there)

What a member does:

    FRESH ---- begin ---> READING -------- start_copying -------> COPYING -- finish_copying --> READING
                           |  ^                                      ^
             start_waiting |  | stop_waiting                         |
                           v  |                                      |
                          WAITING ---------- start_copying ----------+

    READING or WAITING ------------ finish_epoch --> RESTING -- begin --> READING
    READING, WAITING or COPYING --- rest ----------> RESTING
    any phase --------------------- restore -------> RESTING

Whether the others wait for it:

    AWAITED -- pass_by --> PASSED_BY -- catch_up --> AWAITED
    AWAITED or PASSED_BY -- retire --> LEAVING -- leave --> (gone)

Fail-over follows from this: claims of dead processes are forgotten, so those batches are needed again. A member is passed
by because the others would not wait any longer, or because it comes from an earlier point. Its own workers prepare what it
lacks, until it has caught up.

A worker that needs room waits for readers to release batches. It never waits for another worker: a batch that is needed
first gets the room of one that is needed later, and a worker gives up what it has prepared when an earlier batch lacks a
worker.

Nothing here knows clocks, processes or memory: times, and which processes are alive, are arguments. Questions, which
change nothing, are in `state`.
"""

from collections.abc import Callable

from stoker.group import life
from stoker.group.answers import Draw, LetGo, RoomAnswer, Task, TooLarge, WaitForRoom
from stoker.group.life import AWAITED, CLAIMED, FILLING, FRESH, LEAVING, PASSED_BY, READY, WAITING, WANTS_ROOM
from stoker.group.records import NOWHERE, Epoch, Member, Point, StagedBatch
from stoker.group.room import ProcessId, Slot
from stoker.group.state import GroupState

WORK, BATCHES = range(2)
"""What processes wait for: a task or room for a batch, and batches to read."""

IsAlive = Callable[[int, int], bool]


class Group(GroupState):
    """A group at one moment, and what may happen to it."""

    __slots__ = ()

    # ---- members

    def join(self, process: ProcessId, label: str, descriptor: int, now: float, *, counts: bool = False) -> int:
        """A member comes. It reads the first epoch that has not begun; one that counts epochs itself reads epoch 0."""
        number, self.joined = self.joined, self.joined + 1
        first = self.first_unbegun()
        member = Member(number, process, label, descriptor, 0 if counts else first, 0, now, counts=counts)
        if member.epoch < first:
            member.change_standing("pass_by")
        self.members[number] = member
        return number

    def begin(self, number: int, now: float) -> int:
        """A member begins its next epoch, and leaves the one that it has not finished. Returns the new epoch's number."""
        member = self.members[number]
        self.rest(number, now)
        if member.standing == PASSED_BY and not member.step and not member.counts:
            member.change_standing("catch_up")
            member.epoch = max(member.epoch, self.first_unbegun())
        member.change_phase("begin")
        self._move(member, member.point, now)
        self.to_wake.add(WORK)
        return member.epoch

    def rest(self, number: int, now: float) -> None:
        """A member reads no more of its epoch. If it has read any batch of it, its next epoch is the one after."""
        member = self.members[number]
        if member.is_reading:
            member.change_phase("rest")
            self._move(member, (member.epoch + (member.step > 0), 0), now)
            self.to_wake.add(WORK)

    def restore(self, number: int, point: Point, now: float) -> bool:
        """A member goes on from a point where it was before. False if it has to catch up: the others do not wait for it."""
        member = self.members[number]
        member.change_phase("restore")
        others = [other.point for other in self.awaited() if other is not member and other.phase != FRESH]
        known = self.epochs.get(point[0])
        is_gone = known.gone > point[1] if known is not None else any(epoch > point[0] for epoch, _ in others)
        is_late = is_gone and any(other > point for other in others)
        if is_late != (member.standing != AWAITED) and member.standing != LEAVING:
            member.change_standing("pass_by" if is_late else "catch_up")
        self._move(member, point, now)
        if member.standing == AWAITED and all(epoch < point[0] for epoch, _ in others):
            for other in [other for other in self.awaited() if other.phase == FRESH and other.point < point]:
                if other.counts:
                    other.change_standing("pass_by")
                else:
                    self._move(other, (self.first_unbegun(), 0), now)
        self.to_wake |= {WORK, BATCHES}
        return member.standing == AWAITED

    def pass_by(self, number: int) -> None:
        """The others do not wait for a member, nor for its workers, until it has caught up or begins another epoch."""
        member = self.members[number]
        if member.standing == AWAITED:
            member.change_standing("pass_by")
            self.passed_by += 1
        for batch in [batch for batch in self.batches.values() if batch.member == number and batch.state != READY]:
            self._forget(batch, _may_be_alive)
        self._clear()
        self.to_wake |= {WORK, BATCHES}

    def retire(self, number: int) -> None:
        """A member is about to leave: the others do not wait for it, and its workers take on nothing new."""
        self.members[number].change_standing("retire")
        self.stop_waiting(number)
        self._clear()
        self.to_wake |= {WORK, BATCHES}

    def leave(self, number: int, is_alive: IsAlive) -> None:
        """A member has left or died. Other members' workers prepare what it had claimed."""
        member = self.members.pop(number, None)
        if member is None:
            return
        for batch in [batch for batch in self.batches.values() if batch.member == number and batch.state != READY]:
            self._forget(batch, is_alive)
        self._clear()
        self.to_wake |= {WORK, BATCHES}

    def add_worker(self, number: int, process: ProcessId) -> None:
        """A member has one more process that prepares batches."""
        self.members[number].workers.append(process)

    def sweep(self, is_alive: IsAlive) -> list[int]:
        """Remove dead members and workers. Returns which members were dead."""
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
            self.to_wake.add(WORK)
        return dead

    def _forget(self, batch: StagedBatch, is_alive: IsAlive) -> None:
        del self.batches[batch.point]
        self.abandoned.add(batch.point)
        self.to_wake |= {WORK, BATCHES}
        if batch.slot != NOWHERE and is_alive(*batch.process):
            self.room.lost[batch.slot] = batch.process

    # ---- preparing

    def claim(self, number: int, process: ProcessId) -> Task | None:
        """Give a worker of a member its next task, if there is any. A batch to prepare is this process's from now on."""
        task = self.needed_next(self.members[number])
        if task is None or isinstance(task, Draw):
            return task
        point = task.point
        if point in self.abandoned:
            self.abandoned.remove(point)
            self.taken_over += 1
        elif point in self.dropped or point[1] < self.epochs[point[0]].gone or self.is_behind(point):
            self.dropped.discard(point)
            self.repeated += 1
        self.batches[point] = StagedBatch(*point, number, process)
        return task

    def slept(self, part: float) -> None:
        """Note the part of a batch's time during which its worker slept."""
        self.asleep += (min(1.0, max(0.0, part)) - self.asleep) / 8

    def draw(self, epoch: int, steps: int, digest: str) -> str:
        """A process tells the length and digest of an epoch. Returns the digest that the first process told."""
        self.to_wake |= {WORK, BATCHES}
        return self.epochs.setdefault(epoch, Epoch(steps, digest)).digest

    def assign_slot(self, point: Point, process: ProcessId, size: int) -> RoomAnswer:
        """Give a slot to a batch of so many bytes that a process has claimed and prepared."""
        batch = self.batches.get(point)
        if batch is None or batch.process != process or batch.state not in (CLAIMED, WANTS_ROOM):
            return LetGo()
        if size > self.room.budget_bytes:
            return TooLarge(self.room.budget_bytes)
        if not self.members[batch.member].workers and self.ready_batch(batch.member) is not None:
            return LetGo()  # the reader prepares it itself, so it must not hold the room of the batch that it reads next
        self._make_room(point, size)
        slot = self.room.occupy(size, self.taken())
        if slot is None:
            before, batch.state = batch.state, WANTS_ROOM
            if self.is_out_of_turn(batch):
                batch.state = before
                return LetGo()
        self.largest = max(self.largest, size)
        if slot is None:
            return WaitForRoom()
        batch.slot, batch.state, batch.used = slot.number, FILLING, size
        return slot

    def reserve(self, point: Point, process: ProcessId) -> Slot | None:
        """Give a batch of unknown size a slot as large as the largest so far, if one is free at once."""
        batch = self.batches.get(point)
        if batch is None or (batch.process, batch.state) != (process, CLAIMED) or not self.largest:
            return None
        if any(other.state == WANTS_ROOM for other in self.batches.values()):
            return None
        slot = self.room.occupy(self.largest, self.taken())
        if slot is not None:
            batch.slot, batch.state, batch.used = slot.number, FILLING, slot.size
        return slot

    def give_back(self, point: Point, process: ProcessId, slot: int) -> None:
        """Free the slot that was reserved for a batch: it is too small."""
        batch = self.batches.get(point)
        if batch is not None and (batch.process, batch.slot, batch.state) == (process, slot, FILLING):
            batch.slot, batch.state = NOWHERE, CLAIMED
        if self.room.lost.get(slot) == process:
            del self.room.lost[slot]
        self.to_wake.add(WORK)

    def _make_room(self, point: Point, size: int) -> None:
        """Drop later batches, and those that only members passed by need, if this batch is the first that wants room."""
        first = self.first()
        others = [batch for batch in self.batches.values() if batch.state == READY and not self.is_held(batch.point)]
        later = [batch for batch in others if batch.point > point or first is None or batch.point < first]
        later.sort(key=lambda batch: (first is not None and batch.point >= first, *_backwards(batch.point)))
        is_first_in_line = all(
            batch.state == READY or batch.point >= point or (first is not None and batch.point < first <= point)
            for batch in self.batches.values()
        )
        if is_first_in_line and self.room.fits(size, self.taken() - {batch.slot for batch in later}):
            for batch in later:
                if self.room.fits(size, self.taken()):
                    break
                del self.batches[batch.point]
                self.dropped.add(batch.point)
                self.to_wake.add(WORK)

    def publish(self, point: Point, process: ProcessId, slot: int, length: int) -> bool:
        """A batch of so many bytes is ready. False if this process must let it go: its claim is lost."""
        batch = self.batches.get(point)
        if batch is None or (batch.process, batch.slot, batch.state) != (process, slot, FILLING):
            return False
        batch.state, batch.used = READY, length
        self.prepared += 1
        self.to_wake.add(BATCHES)
        self._clear()
        return True

    def let_go(self, point: Point, process: ProcessId, slot: int = NOWHERE) -> None:
        """A process gives up the batch that it has claimed, and the slot that it was given."""
        batch = self.batches.get(point)
        if batch is not None and (batch.process, batch.slot) == (process, slot) and batch.state != READY:
            del self.batches[point]
            self.abandoned.add(point)
        if self.room.lost.get(slot) == process:
            del self.room.lost[slot]
        self.to_wake |= {WORK, BATCHES}

    # ---- reading

    def start_waiting(self, number: int) -> None:
        """A member waits for its next batch. The batch is kept until the member has copied it."""
        self.members[number].change_phase("start_waiting")

    def stop_waiting(self, number: int) -> None:
        """A member does not wait any more: its next batch may be dropped to make room."""
        if self.members[number].phase == WAITING:
            self.members[number].change_phase("stop_waiting")
        self.to_wake.add(WORK)

    def start_copying(self, number: int) -> None:
        """A member begins to copy its next batch, which is ready. The batch stays in its slot until `finish_copying`."""
        if self.ready_batch(number) is None:
            raise life.IllegalChange("start_copying: the batch is not ready")
        self.members[number].change_phase("start_copying")

    def finish_copying(self, number: int, now: float) -> None:
        """A member has its copy of the batch, and goes on to the next one."""
        member = self.members[number]
        member.change_phase("finish_copying")
        self._move(member, (member.epoch, member.step + 1), now)

    def finish_epoch(self, number: int) -> None:
        """A member has read all batches of its epoch. It reads the next epoch after that."""
        if not self.has_read_all(number):
            raise life.IllegalChange("finish_epoch: there are batches to read")
        member = self.members[number]
        member.change_phase("finish_epoch")
        self._move(member, (member.epoch + 1, 0), member.moved_at)
        self.to_wake.add(WORK)

    def _move(self, member: Member, point: Point, now: float) -> None:
        member.epoch, member.step = point
        member.moved_at = now
        if member.standing == PASSED_BY and member.is_reading:
            awaited = [other.point for other in self.awaited()]
            if member.point >= min(awaited, default=member.point):
                member.change_standing("catch_up")
        if any(batch.state == WANTS_ROOM for batch in self.batches.values()):
            self.to_wake.add(WORK)
        self._clear()

    def _clear(self) -> None:
        """Remove batches and epochs that no member needs."""
        first = self.first()
        alone = [member for member in self.members.values() if member.standing != AWAITED]
        for point, batch in [(point, batch) for point, batch in self.batches.items() if batch.state == READY]:
            if (first is not None and point >= first) or self.is_held(point):
                continue
            if any(m.number == batch.member and m.point <= point < m.furthest for m in alone):
                continue
            del self.batches[point]
            self.to_wake.add(WORK)
            known = self.epochs[batch.epoch]
            known.gone = max(known.gone, batch.step + 1)
        lowest = min((member.epoch for member in self.members.values()), default=None)
        for epoch in [epoch for epoch in self.epochs if lowest is not None and epoch < lowest]:
            if not any(batch.epoch == epoch for batch in self.batches.values()):
                del self.epochs[epoch]
        for points in (self.abandoned, self.dropped):
            points.difference_update([point for point in points if lowest is None or point[0] < lowest])


def _may_be_alive(_pid: int, _started: int) -> bool:
    return True


def _backwards(point: Point) -> Point:
    return -point[0], -point[1]
