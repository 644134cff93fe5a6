"""What each host of a job reads in each epoch, where the order is known in advance. Pure.

The order of all ranks is one list for each epoch, and rank r of W takes every W-th sample of it from the r-th on. A host
reads what its ranks take, in turn. As everybody can draw that list, every host knows who uses a sample next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.order import Drawn, Ids, pad

_NOBODY = np.iinfo(np.uint16).max


@dataclass(frozen=True, slots=True)
class Shares:
    """Who reads what. `epoch_ids` is the order of all ranks, which divides evenly among them."""

    epoch_ids: Callable[[int], Ids]
    host_of_rank: Sequence[int]
    """Hosts are counted from 0."""
    epochs: int | None = None
    """How many there will be; None is unknown, and without an end."""

    def __post_init__(self) -> None:
        if not self.host_of_rank or set(self.host_of_rank) != set(range(self.hosts)) or self.hosts >= _NOBODY:
            raise ConfigError(f"every host needs a rank, and hosts are counted from 0: {list(self.host_of_rank)}")

    @property
    def hosts(self) -> int:
        """How many there are."""
        return 1 + max(self.host_of_rank)

    @property
    def world(self) -> int:
        """All ranks."""
        return len(self.host_of_rank)

    def of_host(self, host: int, epoch: int) -> Ids:
        """What a host reads in an epoch, in order; nothing after the last epoch."""
        mine = [rank for rank, at in enumerate(self.host_of_rank) if at == host]
        return self._rows(epoch)[:, mine].ravel()

    def users(self, epoch: int) -> NDArray[np.uint16]:
        """The host that uses each sample in an epoch. Of several, which only padding makes, it is one of them."""
        rows = self._rows(epoch)
        found = np.full(1 + int(rows.max(initial=-1)), _NOBODY, np.uint16)
        found[rows] = np.array(self.host_of_rank, np.uint16)
        return found

    def is_over(self, epoch: int) -> bool:
        """Whether there is no such epoch any more."""
        return self.epochs is not None and epoch >= self.epochs

    def _rows(self, epoch: int) -> Ids:
        ids = np.empty(0, np.int64) if self.is_over(epoch) else np.asarray(self.epoch_ids(epoch), np.int64)
        return ids.reshape(-1, self.world)


def shares_of(order: Drawn, hosts: int, ranks: int = 1, epochs: int | None = None) -> Shares:
    """Hosts with equally many ranks each, which read a drawn order."""
    world = hosts * ranks
    host_of_rank = [rank // ranks for rank in range(world)]
    return Shares(lambda epoch: pad(order.epoch(epoch), world, drop_last=False), host_of_rank, epochs)


class Users:
    """In which epoch a host uses a sample next, within a horizon of epochs after the one that has begun.

    It takes 2 bytes for each sample and epoch in sight, so that what N hosts do is known without N lists of positions.
    """

    def __init__(self, shares: Shares, horizon: int) -> None:
        self._shares = shares
        self._horizon = horizon
        self._window: dict[int, NDArray[np.uint16]] = {}
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Go to an epoch. Epochs that are known already are not drawn again."""
        self._epoch = epoch
        known = self._window
        self._window = {
            number: known[number] if number in known else self._shares.users(number)
            for number in range(epoch, epoch + self._horizon + 1)
        }

    def next_epoch(self, host: int, key: int, since: int) -> int | None:
        """The first epoch from `since` on in which the host uses the sample; None if that is not in sight."""
        return self._first(since, key, lambda user: user == host)

    def is_needed(self, key: int, since: int) -> bool:
        """Whether any host uses the sample in an epoch from `since` on, as far as can be seen."""
        return self._first(since, key, lambda user: user != _NOBODY) is not None

    def _first(self, since: int, key: int, fits: Callable[[int], bool]) -> int | None:
        for epoch in range(max(since, self._epoch), self._epoch + self._horizon + 1):
            users = self._window[epoch]
            if key < len(users) and fits(int(users[key])):
                return epoch
        return None
