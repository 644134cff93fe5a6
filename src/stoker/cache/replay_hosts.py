"""What the caches of several hosts would do together on an order that is known: a replay by the objects that decide live.

All hosts go on in step, sample by sample, and the directory is always right. Every use is counted once, by where it came
from: a demand hit was here because this host had used it before, a prefetched one because it was fetched ahead; both
together are service hits. The others are read from the host that is listed, or from storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from stoker.cache.cooperation import CacheChoice, Cooperation
from stoker.cache.shares import Shares
from stoker.errors import ConfigError


@dataclass(slots=True)
class HostEpoch:
    """One epoch of one host, or a sum of several."""

    uses: int = 0
    demand_hits: int = 0
    prefetched_hits: int = 0
    peer_hits: int = 0
    storage_reads: int = 0
    ahead_from_peers: int = 0
    """Fetched before they are used; these are not uses."""
    ahead_from_storage: int = 0
    bytes_from_storage: int = 0
    """All that is read from there, ahead or not. Sizes are samples where none were given."""
    bytes_from_peers: int = 0

    @property
    def service_hits(self) -> int:
        """What was here when it was used."""
        return self.demand_hits + self.prefetched_hits

    @classmethod
    def total(cls, parts: Sequence["HostEpoch"]) -> Self:
        """All together."""
        return cls(**{item.name: sum(getattr(part, item.name) for part in parts) for item in fields(cls)})


@dataclass(frozen=True, slots=True)
class HostsReplay:
    """What became of it: `epochs[epoch][host]`."""

    epochs: tuple[tuple[HostEpoch, ...], ...]

    def total(self, after: int = 0, until: int | None = None) -> HostEpoch:
        """Of all hosts, in a range of epochs."""
        return HostEpoch.total([host for epoch in self.epochs[after:until] for host in epoch])


class Hosts:
    """The caches of all hosts and the directory, use by use."""

    def __init__(self, shares: Shares, capacities: Sequence[int], policy: str, sizes: Sequence[int] | None) -> None:
        if len(capacities) != shares.hosts:
            raise ConfigError(f"{len(capacities)} capacities for {shares.hosts} hosts")
        self._sizes = sizes
        self.listed: dict[int, int] = {}
        """The directory: which host is listed for a sample."""
        self.caches = [
            Cooperation(host, capacity, self._sizes_of, self.listed.get, shares, policy)
            for host, capacity in enumerate(capacities)
        ]
        self._prefetched: list[set[int]] = [set() for _ in capacities]
        self._counts: list[HostEpoch] = []

    def play(self, epoch: int, ahead: int, within: int) -> tuple[HostEpoch, ...]:
        """One epoch. After each use a host fetches up to `ahead` samples, for which others go `within` so many uses."""
        reads = [cache.begin(epoch).tolist() for cache in self.caches]
        self._counts = [HostEpoch() for _ in self.caches]
        for place in range(max(map(len, reads))):
            for host, ids in enumerate(reads):
                if place < len(ids):
                    self.use(host, ids[place])
                    self._fetch_ahead(host, ahead, within)
        return tuple(self._counts)

    def use(self, host: int, key: int) -> None:
        """A host uses a sample."""
        cache, count, size = self.caches[host], self._counts[host], self._sizes_of([key])[0]
        count.uses += 1
        is_here, at = key in cache.ledger, self.listed.get(key)
        choice = cache.decide([key])
        if is_here and key in self._prefetched[host]:
            count.prefetched_hits += 1
            self._prefetched[host].discard(key)
        elif is_here:
            count.demand_hits += 1
        elif at is None:
            count.storage_reads += 1
            count.bytes_from_storage += size
        else:
            count.peer_hits += 1
            count.bytes_from_peers += size
            self._ask(at, key, choice)
        self._note(host, choice)

    def _fetch_ahead(self, host: int, most: int, within: int) -> None:
        count = self._counts[host]
        choice = self.caches[host].look_ahead(most, within) if most else CacheChoice()
        for key, size in zip(choice.kept, self._sizes_of(choice.kept), strict=True):
            self._prefetched[host].add(key)
            at = self.listed.get(key)
            if at is None:
                count.ahead_from_storage += 1
                count.bytes_from_storage += size
            else:
                count.ahead_from_peers += 1
                count.bytes_from_peers += size
                self._ask(at, key, choice)
        self._note(host, choice)

    def _ask(self, at: int, key: int, choice: CacheChoice) -> None:
        is_taken_over = key in choice.listed
        if is_taken_over:
            del self.listed[key]
        self._note(at, self.caches[at].served(key, is_taken_over=is_taken_over))

    def _note(self, host: int, choice: CacheChoice) -> None:
        """Bring the directory up to date."""
        self.listed.update(dict.fromkeys(choice.listed, host))
        for key in choice.forgotten:
            self._prefetched[host].discard(key)
            if self.listed.get(key) == host:
                del self.listed[key]

    def _sizes_of(self, ids: Sequence[int]) -> list[int]:
        return [1] * len(ids) if self._sizes is None else [int(self._sizes[key]) for key in ids]


def replay_hosts(
    shares: Shares,
    capacities: Sequence[int],
    *,
    policy: str = "reuse-distance",
    epochs: int = 10,
    sizes: Sequence[int] | None = None,
    ahead: int = 0,
    within: int = 64,
) -> HostsReplay:
    """Replay epochs from the first on. Capacities are in bytes, or in samples if there are no `sizes`."""
    hosts = Hosts(shares, capacities, policy, sizes)
    return HostsReplay(tuple(hosts.play(epoch, ahead, within) for epoch in range(epochs)))
