"""A member of a group, in the process that reads. It copies batches, or waits for them and can say why."""

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker.errors import MemberLost
from stoker.group.answers import EpochOver, Task, Turn
from stoker.group.door import Differences, enter, leave
from stoker.group.life import AWAITED
from stoker.group.records import Member, Point, Reason, StagedBatch
from stoker.group.rules import BATCHES, Group
from stoker.group.staging import LOOK_S, GroupStaging
from stoker.host import forks
from stoker.host.locks import close_lock, when_outside
from stoker.live.groups import ASLEEP, ROOM

HELPS_AFTER_S = 1.0
"""How long a member without workers waits for workers of others to begin with what it needs."""
PASSED_BY_AFTER_S = 30.0
"""How long the others wait for a member that is not within an epoch."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A group, as one of its members sees it."""

    name: str
    members: int
    """Loaders that are in it now."""
    workers: int
    """Workers of all of them."""
    prepared: int
    """Batches that were prepared by any member since the group was opened."""
    repeated: int
    """Prepared batches that had been prepared before: for a member that came back, or because they had been dropped."""
    taken_over: int
    """Prepared batches that another member had claimed before it left or died."""
    passed_by: int
    """How often the others stopped waiting for a member."""
    staging_bytes: int
    """Memory that holds batches now."""
    most_bytes: int
    """The most that held batches at any time."""
    budget_bytes: int
    """The most that may hold batches."""
    last: str
    """The member that is furthest behind, if that is another one."""
    waited_for: dict[str, float]
    """Seconds that this member waited, by the name of what it waited for."""
    catches_up: bool
    """Whether the others do not wait for this member now; its own workers prepare what it lacks."""
    resumed: str
    """How it went on from a state: "in step" or "catching up"; "" if it did not."""


class Seat:
    """A member of a group, in the process that reads. It leaves by `close`, or when the process ends."""

    def __init__(
        self,
        name: str,
        about: dict[str, Any],
        differences: Differences,
        budget_bytes: int,
        label: str,
        cores: float = float("inf"),
    ) -> None:
        self.name = name
        self.owner = os.getpid()
        self.address, self.about, presence = enter(name, about, differences, budget_bytes, cores, label)
        self.staging = GroupStaging(self.address)
        self.staging.while_waiting = weakref.WeakMethod(self._lose_patience)
        self.waited_for: dict[str, float] = {}
        self.resumed = ""
        self._limit_s = float("inf")
        self.close = weakref.finalize(self, _leave, self.staging, presence, self.owner)
        _seats.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process joined. A forked child inherits the object, not the seat."""
        return self.owner == os.getpid() and self.close.alive

    def begin(self) -> Point:
        """Enter the next epoch, or go on with one that was restored. Returns the batch that is read first."""
        with self.staging.table.change() as group:
            self._check(group)
            group.begin(self.address.member, time.monotonic())
            point: Point = group.members[self.address.member].point
            return point

    def rest(self) -> None:
        """Read nothing more of this epoch. May be called at any line, by the garbage collector say."""
        when_outside(self._rest)

    def _rest(self) -> None:
        if self.is_ours:
            with self.staging.table.change() as group:
                self._check(group)
                group.rest(self.address.member, time.monotonic())

    def retire(self) -> None:
        """Say that this job is about to leave: the others do not wait for it, and its workers take on nothing new."""
        with self.staging.table.change() as group:
            if self.address.member in group.members:
                group.retire(self.address.member)

    def restore(self, point: Point) -> None:
        """Go on from a point where this job was before."""
        with self.staging.table.change() as group:
            self._check(group)
            in_step = group.restore(self.address.member, point, time.monotonic())
        self.resumed = "in step" if in_step else "catching up"

    @contextlib.contextmanager
    def turn(self, patience: "Patience") -> Iterator[Turn]:
        """What this reader does next. If that is a batch, copy it within the body: its slot is free afterwards."""
        self._limit_s = float("inf") if patience.limit_s is None else patience.limit_s
        try:
            turn = self._wait_for_turn(patience)
        except BaseException:
            if self.is_ours:
                self._stop_waiting()
            raise
        yield turn
        if isinstance(turn, StagedBatch):
            with self.staging.table.change() as group:
                self._check(group)
                group.finish_copying(self.address.member, time.monotonic())

    def _stop_waiting(self) -> None:
        with self.staging.table.change() as group:
            if self.address.member in group.members:
                group.stop_waiting(self.address.member)

    def _wait_for_turn(self, patience: "Patience") -> Turn:
        number, table = self.address.member, self.staging.table
        began = time.monotonic()
        while True:
            ticket = table.ticket(BATCHES)
            with table.change() as group:
                self._check(group)
                if group.has_read_all(number):
                    group.finish_epoch(number)
                    return EpochOver()
                batch: StagedBatch | None = group.ready_batch(number)
                if batch is not None:
                    group.start_copying(number)
                    return batch
                group.start_waiting(number)
                if patience.prepares and group.lacks_workers(number, is_late=time.monotonic() - began > HELPS_AFTER_S):
                    task: Task | None = group.claim(number, self.staging.process)
                    if task is not None:
                        return task
                reason = group.reason(number)
                late = group.members.get(reason.member)
            waited_s = time.monotonic() - began
            if late is not None and waited_s >= self._limit_for(late, reason) and self._lose_patience(began):
                continue
            who = "workers" if late is None else "own workers" if late.number == number else name_of(late)
            before = time.monotonic()
            table.wait(BATCHES, ticket, LOOK_S)
            after = time.monotonic()
            self.waited_for[who] = self.waited_for.get(who, 0.0) + after - before
            if after - before >= LOOK_S / 2:
                patience.look(who, late.process[0] if late is not None else 0, after - began)
                self.staging.look_around()

    def _lose_patience(self, began: float) -> bool:
        """Stop waiting for another member if this one has waited for it too long. Returns whether it has."""
        number = self.address.member
        with self.staging.table.change() as group:
            self._check(group)
            reason = group.reason(number)
            late = group.members.get(reason.member)
            if late is None or time.monotonic() - max(began, late.moved_at) < self._limit_for(late, reason):
                return False
            if reason.kind == ASLEEP:
                group.stop_waiting(late.number)
            else:
                group.pass_by(late.number)
            return True

    def _limit_for(self, late: Member, reason: Reason) -> float:
        """How long to wait for another member. A member of this process cannot go on while this one waits."""
        if reason.kind == ASLEEP:
            return LOOK_S
        if reason.kind != ROOM:
            return self._limit_s if late.number != self.address.member else float("inf")
        if late.process == self.staging.process:
            return 0.0
        return self._limit_s if late.is_reading else min(self._limit_s, PASSED_BY_AFTER_S)

    def _check(self, group: Group) -> None:
        if self.address.member not in group.members:
            raise MemberLost(
                f"this job is no longer in the group {self.name!r}: it was taken for dead. Are its members in one space of "
                "process ids (one container)?"
            )

    def stats(self) -> GroupStats:
        """The group as it is now."""
        with self.staging.table.look() as group:
            own = group.members.get(self.address.member)
            last = group.last()
            is_other = own is not None and last is not None and last.point < own.point
            return GroupStats(
                name=self.name,
                members=len(group.members),
                workers=sum(len(member.workers) for member in group.members.values()),
                prepared=group.prepared,
                repeated=group.repeated,
                taken_over=group.taken_over,
                passed_by=group.passed_by,
                staging_bytes=group.room.staged_bytes,
                most_bytes=group.room.most_bytes,
                budget_bytes=group.room.budget_bytes,
                last=name_of(last) if is_other and last is not None else "",
                waited_for=dict(self.waited_for),
                catches_up=own is not None and own.standing != AWAITED,
                resumed=self.resumed,
            )


@dataclass(slots=True)
class Patience:
    """How a reader waits for its next batch."""

    prepares: bool
    """Whether it prepares batches itself when there is no worker."""
    limit_s: float | None
    """How long it waits for another member that is within an epoch; None: for ever."""
    look: Callable[[str, int, float], None]
    """Called from time to time with what it waits for, its pid, and for how long by now; may raise."""


def name_of(member: Member) -> str:
    """What messages call a member."""
    return f"{member.label} (pid {member.process[0]})"


_seats: "weakref.WeakSet[Seat]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child is not a member, so it closes the memory and the locks."""
    for seat in list(_seats):
        if seat.close.alive:
            seat.close.detach()
            seat.staging.close()


forks.register(forks.Stage.HOLDINGS, after_in_child=_after_fork_in_child)


def _leave(staging: GroupStaging, presence: int, owner: int) -> None:
    """Leave the group. The garbage collector may call this at any line."""
    when_outside(lambda: _leave_now(staging, presence, owner))


def _leave_now(staging: GroupStaging, presence: int, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            leave(staging)
        staging.close()
        close_lock(presence)
