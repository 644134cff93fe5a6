"""One host's part in a cache over several hosts: what it keeps, what it lets go, what it fetches ahead. Pure.

For each sample one host is *listed*: the directory names it, and others ask it. All other hosts that have the sample hold
copies that nobody relies on. So two hosts never drop the last two copies because each relies on the other. The rules:

    read from storage      It is listed here. Copies make room for it, then listed samples that nobody uses again in this
                           epoch and that this host uses later. The next epoch reads no more from storage for that.
    read from a host       If this host needs it again sooner than that one, it is listed here from now on, and the other
                           host has a copy. A copy makes room for it. Otherwise it is a copy here, and only a copy that is
                           used later makes room for it.
    after the last use     It goes, unless it is listed here and another host needs it.
    fetched ahead          What this host uses next; nothing that is used sooner makes room. What is used in the next epoch
                           is fetched only from hosts: in this epoch somebody else reads it from storage.

`keep-first` is the case in which no use is known: only copies make room, only for what is read from storage, and no other
host is listed for a sample later on. A replay and a live cache use the same objects.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stoker.cache.ledger import Ledger
from stoker.cache.listed import Arrival, ListedLast
from stoker.cache.policy import FAR
from stoker.cache.replay import Foresight, epoch_of, far_enough
from stoker.cache.shares import Shares, Users
from stoker.errors import ConfigError
from stoker.order import Ids

POLICIES = ("keep-first", "reuse-distance")

Holder = Callable[[int], int | None]
"""Another host that is listed for a sample, as far as is known here."""


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """What to do about samples that are used or fetched ahead."""

    kept: list[int] = field(default_factory=list)
    """To be put into the store when they have been read; those of `look_ahead` are to be read."""
    forgotten: list[int] = field(default_factory=list)
    """To be removed from it."""
    listed: list[int] = field(default_factory=list)
    """Those of `kept` that this host is listed for from now on. The host that it is read from has to be told: `served`."""


class Cooperation:
    """Decides for one host. `begin` an epoch, then `decide` on all samples that its ranks use, about in order.

    Without `shares` the order is not known: then `keep-first` is the only policy, and nothing is fetched ahead unless it
    is offered.
    """

    def __init__(
        self,
        me: int,
        capacity_bytes: int,
        sizes: Callable[[Sequence[int]], Sequence[int]],
        holder: Holder,
        shares: Shares | None = None,
        policy: str = "reuse-distance",
    ) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"a cache over several hosts is kept by one of {', '.join(POLICIES)}, not {policy!r}")
        if policy == "reuse-distance" and shares is None:
            raise ConfigError("the cache policy 'reuse-distance' needs an order known in advance: one drawn from a seed")
        self._sizes, self._holder, self._shares = sizes, holder, shares
        self._horizon = 1 if shares is None or policy == "keep-first" else far_enough(shares.hosts)
        self._foresight = Foresight(lambda epoch: shares.of_host(me, epoch), self._horizon) if shares else None
        self._users = Users(shares, self._horizon) if shares and policy == "reuse-distance" else None
        knows = self._foresight is not None and policy == "reuse-distance"
        self.policy = ListedLast(self._next_use if knows else lambda key: 0)
        self.ledger = Ledger(capacity_bytes, self.policy)
        self._epoch = self._length = self._place = self._ahead = 0

    def begin(self, epoch: int, consumed: int = 0) -> Ids:
        """An epoch begins, or goes on after so many of this host's samples. What this host uses in it, if that is known."""
        self._epoch, self._place, self._ahead = epoch, consumed, consumed
        self.policy.begin_epoch()
        if self._users is not None:
            self._users.begin(epoch)
        if self._foresight is None:
            return np.empty(0, np.int64)
        ids = self._foresight.begin(epoch)
        self._foresight.advance(consumed)
        self._length = len(ids)
        return ids

    def decide(self, ids: Sequence[int]) -> CacheChoice:
        """Decide on samples that are used now: which of those that are not here are kept, and which go for them."""
        choice = CacheChoice()
        for key, size in zip(ids, self._sizes(ids), strict=True):
            self._place += 1
            if self._foresight is not None:
                self._foresight.use(key)
            if self.ledger.look(key):
                self._let_go(key, choice)
                continue
            arrival = self._arrival(key, self._holder(key), is_ahead=False)
            if not self._is_over(key, arrival is not Arrival.COPY):
                self._admit(key, size, arrival, choice, is_ahead=False)
        return choice

    def look_ahead(self, most: int, within: int) -> CacheChoice:
        """Up to so many samples to fetch before they are used, the next ones first.

        Others make room only for what is among the next `within` uses. If it came sooner, it would take the place of more
        that is used later, and all that would be fetched again.
        """
        choice = CacheChoice()
        if self._foresight is None:
            return choice
        self._ahead = max(self._ahead, self._place)
        while len(choice.kept) < most and (key := self._foresight.at(self._ahead)) is not None:
            in_this_epoch = self._ahead < self._length
            if key not in self.ledger and (not in_this_epoch or epoch_of(self._next_use(key)) == self._epoch):
                holder, is_soon = self._holder(key), self._ahead < self._place + within
                if (holder is not None or in_this_epoch) and not self._offer(key, holder, choice, may_evict=is_soon):
                    break
            self._ahead += 1
        return choice

    def offer(self, ids: Iterable[int]) -> CacheChoice:
        """Which of these to fetch in the background: for orders that are not known, what other hosts are listed for."""
        choice = CacheChoice()
        for key in ids:
            if key not in self.ledger and not self._offer(key, self._holder(key), choice, may_evict=False):
                break
        return choice

    def resume(self, ids: Iterable[int], sizes: Iterable[int]) -> list[int]:
        """These are in the store from before: they are listed here. Returns those that are too much, to be removed."""
        self.policy.expect(Arrival.FROM_STORAGE, is_ahead=True)
        return [key for key, size in zip(ids, sizes, strict=True) if not self._has_taken(key, size)]

    def _has_taken(self, key: int, size: int) -> bool:
        return self.ledger.has_room(size) and self.ledger.admit(key, size).kept

    def served(self, key: int, *, is_taken_over: bool = False) -> CacheChoice:
        """Another host has read a sample from here. If it has taken it over, it is listed for it from now on."""
        choice = CacheChoice()
        if key in self.ledger:
            self.policy.used(key)
            if is_taken_over:
                self.policy.unlist(key)
            self._let_go(key, choice)
        return choice

    def unlist(self, ids: Iterable[int]) -> None:
        """Another host is listed for these, too, and goes on being so: here they are copies."""
        for key in ids:
            self.policy.unlist(key)

    def lost(self, ids: Iterable[int]) -> None:
        """These are not in the store, after all."""
        for key in ids:
            self.ledger.forget(key)

    def _next_use(self, key: int) -> int:
        return FAR if self._foresight is None else self._foresight.next_use(key)

    def _arrival(self, key: int, holder: int | None, *, is_ahead: bool) -> Arrival:
        """Of two hosts, the one that needs it again sooner is listed. The use that it is fetched for does not count."""
        if holder is None:
            return Arrival.FROM_STORAGE
        if self._users is None or self._foresight is None:
            return Arrival.COPY
        mine = epoch_of(self._foresight.use_after_next(key) if is_ahead else self._foresight.next_use(key))
        if mine > self._epoch + self._horizon:
            return Arrival.COPY
        theirs = self._users.next_epoch(holder, key, self._epoch)
        return Arrival.TAKEN_OVER if theirs is None or mine < theirs else Arrival.COPY

    def _offer(self, key: int, holder: int | None, choice: CacheChoice, *, may_evict: bool) -> bool:
        (size,) = self._sizes([key])
        arrival = self._arrival(key, holder, is_ahead=True)
        return (may_evict or self.ledger.has_room(size)) and self._admit(key, size, arrival, choice, is_ahead=True)

    def _admit(self, key: int, size: int, arrival: Arrival, choice: CacheChoice, *, is_ahead: bool) -> bool:
        self.policy.expect(arrival, is_ahead=is_ahead)
        admission = self.ledger.admit(key, size)
        choice.forgotten.extend(admission.evicted)
        if admission.kept:
            choice.kept.append(key)
            if arrival is not Arrival.COPY:
                choice.listed.append(key)
        return admission.kept

    def _let_go(self, key: int, choice: CacheChoice) -> None:
        if self._is_over(key, self.policy.is_listed(key)):
            self.ledger.forget(key)
            choice.forgotten.append(key)

    def _is_over(self, key: int, is_listed: bool) -> bool:
        """Whether this was the last use here, and no other host relies on this one. The end must be in sight."""
        if self._users is None or self._shares is None or not self._shares.is_over(self._epoch + self._horizon + 1):
            return False
        return self._next_use(key) == FAR and not (is_listed and self._users.is_needed(key, self._epoch + 1))
