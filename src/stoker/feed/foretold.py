"""The epochs to come of a job on several hosts, told to the keeper of this host: who uses what, and when.

torch's DistributedSampler draws its order from a seed and the number of the epoch alone, so that every process can draw
what all of them read. It is drawn here, as the keeper has no torch; by one process of each host.
"""

from typing import Any

from torch.utils.data import DistributedSampler

from stoker.cache.replay import far_enough
from stoker.errors import ConfigError
from stoker.feed.route import distributed_ids
from stoker.feed.tables import paths_of
from stoker.host import ranks
from stoker.keeper.orders import EpochOrders


class Foretold:
    """What a loader with a DistributedSampler reads on all hosts."""

    def __init__(self, sampler: Any, hosts: int) -> None:
        self._sampler = sampler
        self.world, self.rank = int(sampler.num_replicas), int(sampler.rank)
        self.ranks_of_host = ranks.local_world() or self.world // hosts
        if not self.ranks_of_host or self.world % self.ranks_of_host:
            raise ConfigError(
                f"cache_policy='reuse-distance' with peers= needs as many ranks on each host: {self.world} ranks are on "
                f"{hosts} hosts. 'keep-first' goes with any number"
            )
        is_first_of_host = self.rank % self.ranks_of_host == 0
        epochs = 1 + far_enough(self.world // self.ranks_of_host)
        self.orders = EpochOrders(int(sampler.total_size), epochs) if is_first_of_host else None
        """None: another process of this host tells."""

    def document(self) -> dict[str, int]:
        """What the keeper has to know besides."""
        found = {"world": self.world, "rank": self.rank, "ranks_of_host": self.ranks_of_host}
        return found if self.orders is None else found | {"samples": self.orders.samples, "epochs": self.orders.epochs}

    def begin(self, orders: EpochOrders) -> int:
        """Tell the epoch that begins and those after it. Returns its number."""
        first = int(self._sampler.epoch)
        for epoch in range(first, first + orders.epochs):
            if not orders.has(epoch):
                orders.write(epoch, distributed_ids(self._sampler, epoch))
        return first


def obstacle_to_reuse(loader: Any) -> str:
    """Why it cannot be known which files a loader reads on all hosts; "" if it can."""
    policy = "cache_policy='reuse-distance' with peers="
    if type(loader.sampler) is not DistributedSampler:
        return (
            f"{policy} needs torch's DistributedSampler, whose order all hosts know, not {type(loader.sampler).__name__}. "
            "'keep-first' works with any sampler"
        )
    if paths_of(loader.dataset) is None:
        return (
            f"{policy} needs a dataset that keeps the paths of its files in a list, as torchvision's ImageFolder does in "
            "`samples`. 'keep-first' works with any dataset"
        )
    return ""
