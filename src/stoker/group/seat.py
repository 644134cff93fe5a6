"""A member of a group, in the process that reads: it takes batches, waits for them, and knows for whom."""

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker.errors import MemberLost
from stoker.group.door import Differences, enter, leave
from stoker.group.records import Batch, Draw, Member, Place, Reason
from stoker.group.rules import BATCHES, Slots
from stoker.group.staging import LOOK_S, Staging
from stoker.host import forks
from stoker.host.locks import close_lock, when_outside
from stoker.live.groups import ASLEEP, ROOM

HELPS_AFTER_S = 1.0
"""So long a member without workers waits for those of others to begin with what it needs."""
PASSED_BY_AFTER_S = 30.0
"""So long the others wait for a member that is not even within an epoch."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A group, as one of its members sees it."""

    name: str
    members: int
    """Loaders that are in it now."""
    workers: int
    """Workers of all of them."""
    prepared: int
    """Batches that were prepared, by anybody, since the group was opened."""
    repeated: int
    """Of those, how many had been prepared before: for one that came back, or to make room."""
    taken_over: int
    """Of those, how many somebody else had claimed who then left or died."""
    passed_by: int
    """How often a member was not waited for any more."""
    staging_bytes: int
    """Memory that holds batches now."""
    most_bytes: int
    """The most that it ever was."""
    budget_bytes: int
    """The most that it may be."""
    last: str
    """The member that is furthest behind, if that is another one."""
    waited_for: dict[str, float]
    """Seconds that this member waited, by whom for."""
    catches_up: bool
    """Whether nobody waits for this member now; its own workers prepare what it lacks."""
    resumed: str
    """How it came back from a state: "", "in step" or "catching up"."""


class Seat:
    """A member of a group, in the process that reads. It is left by `close`, or with the process."""

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
        self.staging = Staging(self.address)
        self.staging.meanwhile = weakref.WeakMethod(self._lose_patience)
        self.waited_for: dict[str, float] = {}
        self.resumed = ""
        self._patience_s = float("inf")
        self.close = weakref.finalize(self, _leave, self.staging, presence, self.owner)
        _seats.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process joined. A forked child inherits the object, not the seat."""
        return self.owner == os.getpid() and self.close.alive

    def begin(self) -> Place:
        """The next epoch begins, or one that was restored goes on."""
        with self.staging.table.change() as slots:
            self._check(slots)
            slots.begin(self.address.member, time.monotonic())
            place: Place = slots.members[self.address.member].place
            return place

    def rest(self) -> None:
        """Nothing more is read of this epoch: the others wait until the next one begins, and not for long. Any time."""
        when_outside(self._rest)

    def _rest(self) -> None:
        if self.is_ours:
            with self.staging.table.change() as slots:
                self._check(slots)
                slots.rest(self.address.member, time.monotonic())

    def retire(self) -> None:
        """This job is about to leave: nobody waits for it, and its workers end what they are at."""
        with self.staging.table.change() as slots:
            if self.address.member in slots.members:
                slots.retire(self.address.member)

    def restore(self, place: Place) -> None:
        """Go on from a place where this job was before."""
        with self.staging.table.change() as slots:
            self._check(slots)
            in_step = slots.restore(self.address.member, place, time.monotonic())
        self.resumed = "in step" if in_step else "catching up"

    @contextlib.contextmanager
    def batch(self, wait: "Wait") -> Iterator[Batch | Place | Draw | None]:
        """The next batch to copy, within this; or what this process has to prepare itself; or None: the epoch is over."""
        self._patience_s = float("inf") if wait.patience_s is None else wait.patience_s
        try:
            got = self._take(wait)
        except BaseException:
            if self.is_ours:
                self._wait_no_more()
            raise
        yield got
        if isinstance(got, Batch):
            with self.staging.table.change() as slots:
                self._check(slots)
                slots.read(self.address.member, time.monotonic())

    def _wait_no_more(self) -> None:
        with self.staging.table.change() as slots:
            if self.address.member in slots.members:
                slots.wait_no_more(self.address.member)

    def _take(self, wait: "Wait") -> Batch | Place | Draw | None:
        number, table = self.address.member, self.staging.table
        began = time.monotonic()
        while True:
            ticket = table.ticket(BATCHES)
            with table.change() as slots:
                self._check(slots)
                if slots.is_over(number):
                    return None
                batch: Batch | None = slots.take(number)
                if batch is not None:
                    return batch
                if wait.prepares and slots.lacks_workers(number, is_late=time.monotonic() - began > HELPS_AFTER_S):
                    own: Place | Draw | None = slots.claim(number, self.staging.process)
                    if own is not None:
                        return own
                reason = slots.reason(number)
                late = slots.members.get(reason.member)
            waited_s = time.monotonic() - began
            if late is not None and waited_s >= self._patience_with(late, reason) and self._lose_patience(began):
                continue
            who = "workers" if late is None else "own workers" if late.number == number else name_of(late)
            before = time.monotonic()
            table.wait(BATCHES, ticket, LOOK_S)
            after = time.monotonic()
            self.waited_for[who] = self.waited_for.get(who, 0.0) + after - before
            if after - before >= LOOK_S / 2:
                wait.look(who, late.process[0] if late is not None else 0, after - began)
                self.staging.look_around()

    def _lose_patience(self, began: float) -> bool:
        """Whether this member, which has been waiting for so long, goes on without somebody from now on."""
        number = self.address.member
        with self.staging.table.change() as slots:
            self._check(slots)
            reason = slots.reason(number)
            late = slots.members.get(reason.member)
            if late is None or time.monotonic() - max(began, late.moved_at) < self._patience_with(late, reason):
                return False
            if reason.kind == ASLEEP:
                slots.wait_no_more(late.number)
            else:
                slots.pass_by(late.number)
            return True

    def _patience_with(self, late: Member, reason: Reason) -> float:
        """How long to wait for another. One of this very process cannot read on while this one waits."""
        if reason.kind == ASLEEP:
            return LOOK_S
        if reason.kind != ROOM:
            return self._patience_s if late.number != self.address.member else float("inf")
        if late.process == self.staging.process:
            return 0.0
        return self._patience_s if late.is_reading else min(self._patience_s, PASSED_BY_AFTER_S)

    def _check(self, slots: Slots) -> None:
        if self.address.member not in slots.members:
            raise MemberLost(
                f"this job is no longer in the group {self.name!r}: it was taken for dead. Are its members in one space of "
                "process ids (one container)?"
            )

    def stats(self) -> GroupStats:
        """The group as it is now."""
        with self.staging.table.look() as slots:
            own = slots.members.get(self.address.member)
            last = slots.last()
            is_other = own is not None and last is not None and last.place < own.place
            return GroupStats(
                name=self.name,
                members=len(slots.members),
                workers=sum(len(member.workers) for member in slots.members.values()),
                prepared=slots.prepared,
                repeated=slots.repeated,
                taken_over=slots.taken_over,
                passed_by=slots.passed_by,
                staging_bytes=slots.room.staged_bytes,
                most_bytes=slots.room.most_bytes,
                budget_bytes=slots.room.budget_bytes,
                last=name_of(last) if is_other and last is not None else "",
                waited_for=dict(self.waited_for),
                catches_up=own is not None and own.is_passed,
                resumed=self.resumed,
            )


@dataclass(slots=True)
class Wait:
    """How a member waits."""

    prepares: bool
    """Whether it prepares batches itself when there is no worker."""
    patience_s: float | None
    """How long it waits for another that is within an epoch; None for ever."""
    look: Callable[[str, int, float], None]
    """Told from time to time who is waited for, its pid, and for how long by now; may raise."""


def name_of(member: Member) -> str:
    """A member in words."""
    return f"{member.label} (pid {member.process[0]})"


_seats: "weakref.WeakSet[Seat]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child is not the job: it must not keep its memory and locks."""
    for seat in list(_seats):
        if seat.close.alive:
            seat.close.detach()
            seat.staging.close()


forks.register(forks.Stage.HOLDINGS, after_in_child=_after_fork_in_child)


def _leave(staging: Staging, presence: int, owner: int) -> None:
    """A member goes. It may be the garbage collector who says so, at any line."""
    when_outside(lambda: _leave_now(staging, presence, owner))


def _leave_now(staging: Staging, presence: int, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            leave(staging)
        staging.close()
        close_lock(presence)
