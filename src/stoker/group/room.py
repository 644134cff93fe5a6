"""Where staged batches lie: in slots, whose bytes together stay within a budget. Rules, and nothing else."""

from collections.abc import Collection
from dataclasses import dataclass, field

Process = tuple[int, int]
"""A pid, and when that process was started."""


@dataclass(slots=True)
class Room:
    """The slots of a group at one moment."""

    budget_bytes: int
    capacities: list[int] = field(default_factory=list)
    """Bytes that each slot occupies."""
    lost: dict[int, Process] = field(default_factory=dict)
    """Slots that are nobody's, and that a process may still write to."""
    most_bytes: int = 0
    """The most that was ever occupied."""

    @property
    def staged_bytes(self) -> int:
        """What all slots occupy."""
        return sum(self.capacities)

    def may_have(self, size: int, taken: Collection[int]) -> bool:
        """Whether there is room for so many bytes if only these slots are taken."""
        return sum(self.capacities[slot] for slot in {*taken, *self.lost}) + size <= self.budget_bytes

    def find(self, size: int, taken: Collection[int]) -> tuple[int, list[int]] | None:
        """A slot of so many bytes beside those that are taken, and the slots whose memory is to be given back before."""
        if not self.may_have(size, taken):
            return None
        free = [slot for slot in range(len(self.capacities)) if slot not in taken and slot not in self.lost]
        fitting = [slot for slot in free if self.capacities[slot] >= size]
        if fitting:
            return min(fitting, key=lambda slot: (self.capacities[slot], slot)), []
        # The largest that is free grows; others go as far as needed, the largest first.
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
        return found, given_back
