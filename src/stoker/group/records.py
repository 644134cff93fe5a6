"""What is known of a group's members, batches and epochs. The rules for them are in `slots`."""

from dataclasses import dataclass, field

from stoker.group.room import Process

CLAIMED, WAITING, COPYING, READY = range(4)
NOWHERE = -1

Place = tuple[int, int]
"""An epoch, and a step in it."""


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
    is_waiting: bool = False
    """Whether it would, and has to wait for it."""
    is_leaving: bool = False
    """Whether it reads no more, and its workers end what they are at."""
    counts: bool = False
    """Whether it counts its epochs itself: it reads every one of them, though it may have to catch up alone."""
    workers: list[Process] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """What it reads next."""
        return self.epoch, self.step

    @property
    def furthest(self) -> Place:
        """Up to here its workers prepare when nobody else needs it."""
        return self.epoch, self.step + 2 * len(self.workers) + 2

    def holds(self, place: Place) -> bool:
        """Whether a batch must not be taken away from it: it has it, or waits for it."""
        return self.place == place and (self.is_copying or self.is_waiting)


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
    """See `live.groups`."""
    member: int
