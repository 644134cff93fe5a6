"""What a group answers to a process that asks for work, for room, or for its next batch."""

from dataclasses import dataclass

from stoker.group.records import Point, StagedBatch
from stoker.group.room import Slot


@dataclass(frozen=True, slots=True)
class Prepare:
    """This batch is to be prepared. The process that asked has claimed it."""

    point: Point


@dataclass(frozen=True, slots=True)
class Draw:
    """The process has to say first how many batches this epoch has."""

    epoch: int


Task = Prepare | Draw


@dataclass(frozen=True, slots=True)
class WaitForRoom:
    """There is no room for the batch until other batches are read."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """The process must give up the batch: another process has claimed it by now, or something else comes first."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The batch is larger than all of the group's memory."""

    budget_bytes: int


RoomAnswer = Slot | WaitForRoom | LetGo | TooLarge


@dataclass(frozen=True, slots=True)
class EpochOver:
    """The member has read all batches of its epoch."""


Turn = StagedBatch | Task | EpochOver
"""What a reader does next: copy a batch, do a task itself, or end its epoch."""
