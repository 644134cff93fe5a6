"""What is known of a group's members, batches and epochs. The rules by which they change are in `rules`."""

from dataclasses import dataclass, field

from stoker.group.life import AWAITED, CLAIMED, FRESH, READING, WAITING, next_phase, next_standing
from stoker.group.room import ProcessId

NOWHERE = -1
"""In the place of a slot, or of a member, where there is none."""

Point = tuple[int, int]
"""An epoch, and a step in it. Points are ordered as batches are read."""


@dataclass(slots=True)
class Member:
    """A loader of some job."""

    number: int
    process: ProcessId
    label: str
    descriptor: int
    """The descriptor of the group's memory in that process."""
    epoch: int
    step: int
    moved_at: float
    """When its point last changed."""
    phase: int = FRESH
    """What it is doing."""
    standing: int = AWAITED
    """Whether the others wait for it."""
    counts: bool = False
    """Whether it counts its epochs itself: it reads every one of them, though it may have to catch up alone."""
    workers: list[ProcessId] = field(default_factory=list)

    @property
    def point(self) -> Point:
        """The batch that the member reads next."""
        return self.epoch, self.step

    @property
    def is_reading(self) -> bool:
        """Whether the member is within an epoch."""
        return self.phase >= READING

    @property
    def furthest(self) -> Point:
        """The point up to which this member's workers prepare batches that no other member needs."""
        return self.epoch, self.step + 2 * len(self.workers) + 2

    def holds(self, point: Point) -> bool:
        """Whether this member copies a batch, or waits for it: then the batch must stay."""
        return self.phase >= WAITING and self.epoch == point[0] and self.step == point[1]

    def change_phase(self, event: str) -> None:
        """Apply an event of `life.PHASES` to this member."""
        self.phase = next_phase(self.phase, event)

    def change_standing(self, event: str) -> None:
        """Apply an event of `life.STANDINGS` to this member."""
        self.standing = next_standing(self.standing, event)


@dataclass(slots=True)
class StagedBatch:
    """A batch that a process has claimed."""

    epoch: int
    step: int
    member: int
    process: ProcessId
    """The process that prepares it, or did."""
    state: int = CLAIMED
    slot: int = NOWHERE
    used: int = 0

    @property
    def point(self) -> Point:
        """The (epoch, step) at which this batch is read."""
        return self.epoch, self.step


@dataclass(slots=True)
class Epoch:
    """An epoch that all members agree on."""

    steps: int
    digest: str
    """The digest of the order of its samples."""
    gone: int = 0
    """Batches before this step were staged, and are not any more."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a member has to wait."""

    kind: str
    """One of the kinds in `live.groups`."""
    member: int
    """The member that it waits for, or NOWHERE."""
