"""What is known of a group that loaders are in, at one moment: where its members are, and why they wait. Values.

`group.glance` fills them in, from the group's table.
"""

from dataclasses import dataclass

ROOM, PREPARED, ASLEEP, NOBODY = "room", "prepared", "asleep", "nobody"
"""What keeps a member waiting: another must read first; a worker prepares the batch, or will; another member does not
copy what it has waited for; there is no worker."""

Key = tuple[str, str]
"""A group's name, and what tells groups of one name apart."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a member would have to wait for its next batch."""

    kind: str
    member: int | None
    """The member that it waits for, if that is known."""
    pid: int
    """Its process that prepares the batch or must read first; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A loader of some job."""

    number: int
    pid: int
    script: str
    workers: tuple[int, ...]
    """Their pids; threads have that of the member."""
    epoch: int
    step: int
    """The batch that it reads next."""
    behind: int
    """Batches that the first of the group has read and this one has not."""
    is_reading: bool
    """Whether it is within an epoch."""
    is_passed: bool
    """Whether the others do not wait for it."""
    stopped: tuple[int, ...]
    """Those of its processes that a signal or a debugger has stopped."""
    waits: Waits | None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.script} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group; counts are since it was opened."""

    name: str
    stream: str
    members: tuple[MemberView, ...]
    prepared: int
    repeated: int
    taken_over: int
    passed_by: int
    staging_bytes: int
    most_bytes: int
    budget_bytes: int
    locked_by: int
    """The process that is changing it just now, or was stopped while it did; else 0."""

    @property
    def workers(self) -> int:
        """Workers of all members."""
        return sum(len(member.workers) for member in self.members)

    @property
    def last(self) -> MemberView | None:
        """The member that is furthest behind of those that are waited for, unless all are at one place."""
        last = max((one for one in self.members if not one.is_passed), key=lambda one: one.behind, default=None)
        return last if last is not None and last.behind else None

    def member(self, number: int | None) -> MemberView | None:
        """The member with a number."""
        return next((one for one in self.members if one.number == number), None)
