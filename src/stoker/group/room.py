"""Staged batches lie in slots. All slots together stay within a budget of bytes. Pure rules."""

from collections.abc import Collection
from dataclasses import dataclass, field

ProcessId = tuple[int, int]
"""A pid, and when that process was started."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot for one batch."""

    number: int
    size: int
    """Bytes that the batch may have."""
    given_back: tuple[int, ...] = ()
    """Slots whose memory is to be given back before this one is filled."""


@dataclass(slots=True)
class StagingRoom:
    """The slots of a group at one moment."""

    budget_bytes: int
    capacities: list[int] = field(default_factory=list)
    """Bytes that each slot occupies."""
    lost: dict[int, ProcessId] = field(default_factory=dict)
    """Slots that hold no batch, and that a process may still write to."""
    most_bytes: int = 0
    """The most that was occupied at any time."""

    @property
    def staged_bytes(self) -> int:
        """The bytes that all slots occupy."""
        return sum(self.capacities)

    def fits(self, size: int, taken: Collection[int]) -> bool:
        """Whether so many bytes fit beside the taken slots."""
        return sum(self.capacities[slot] for slot in {*taken, *self.lost}) + size <= self.budget_bytes

    def occupy(self, size: int, taken: Collection[int]) -> Slot | None:
        """Make a slot of so many bytes beside the taken ones; None if there is no room for it."""
        if not self.fits(size, taken):
            return None
        free = [slot for slot in range(len(self.capacities)) if slot not in taken and slot not in self.lost]
        fitting = [slot for slot in free if self.capacities[slot] >= size]
        if fitting:
            return Slot(min(fitting, key=lambda slot: (self.capacities[slot], slot)), size)
        # The largest free slot grows. Others give their memory back as far as needed, the largest first.
        free.sort(key=lambda slot: -self.capacities[slot])
        if not free:
            free.append(len(self.capacities))
            self.capacities.append(0)
        found, *others = free
        self.capacities[found] = size
        given_back = []
        for slot in others:
            if self.staged_bytes <= self.budget_bytes:
                break
            self.capacities[slot] = 0
            given_back.append(slot)
        self.most_bytes = max(self.most_bytes, self.staged_bytes)
        return Slot(found, size, tuple(given_back))
