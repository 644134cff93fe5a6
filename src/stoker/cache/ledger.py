"""What a cache holds: which keys, how many bytes, and how often they were found. Pure; it holds no bytes itself.

The rule: what is resident never exceeds the capacity, under any policy. Room is made for a newcomer in full or not at all:
if it is turned away, nothing is evicted. A live cache is a ledger and bytes, a simulation a ledger alone.

    absent --admit, if there is room--> resident
    resident --evicted for another, or forget--> absent
"""

from dataclasses import dataclass

from stoker.cache.policy import Policy
from stoker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a newcomer is resident now, and which keys were evicted for it."""

    kept: bool
    evicted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Counts since the beginning, and what is resident now. `bytes_missed` is what was offered for admission."""

    hits: int
    misses: int
    items: int
    used_bytes: int
    bytes_missed: int


class Ledger:
    """Which keys are resident within a capacity. A policy says which of them goes; `key in ledger` does not count."""

    def __init__(self, capacity_bytes: int, policy: Policy) -> None:
        if capacity_bytes < 0:
            raise ConfigError(f"a cache cannot have a capacity of {capacity_bytes} bytes")
        self.capacity_bytes = capacity_bytes
        self._policy = policy
        self._sizes: dict[int, int] = {}
        self._used = 0
        self._hits = 0
        self._misses = 0
        self._bytes_missed = 0

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more fit, with nothing evicted."""
        return self._used + size <= self.capacity_bytes

    def look(self, key: int) -> bool:
        """Whether a key is resident. Counts a hit or a miss, and a hit is a use for the policy."""
        if key not in self._sizes:
            self._misses += 1
            return False
        self._hits += 1
        self._policy.touch(key)
        return True

    def admit(self, key: int, size: int) -> Admission:
        """Offer an item that was read from elsewhere. A resident item stays as it is: if it changed, forget it first."""
        if size < 0:
            raise ConfigError(f"sample {key} cannot have {size} bytes")
        self._bytes_missed += size
        if key in self._sizes:
            return Admission(kept=True)
        going = self._who_goes(key, size)
        if going is None:
            return Admission(kept=False)
        for victim in going:
            self.forget(victim)
        self._sizes[key] = size
        self._used += size
        self._policy.enter(key)
        return Admission(kept=True, evicted=going)

    def forget(self, key: int) -> None:
        """Remove a key, if it is resident."""
        size = self._sizes.pop(key, None)
        if size is not None:
            self._used -= size
            self._policy.leave(key)

    def stats(self) -> LedgerStats:
        """The counts so far."""
        return LedgerStats(self._hits, self._misses, len(self._sizes), self._used, self._bytes_missed)

    def _who_goes(self, key: int, size: int) -> tuple[int, ...] | None:
        """The victims that make enough room; None if the policy gives too few."""
        missing = size - (self.capacity_bytes - self._used)
        if missing <= 0:
            return ()
        if size > self.capacity_bytes:
            return None
        going: dict[int, None] = {}  # a policy that names one twice gains nothing
        for victim in self._policy.victims(key):
            if victim not in going:
                going[victim] = None
                missing -= self._sizes[victim]
                if missing <= 0:
                    return tuple(going)
        return None
