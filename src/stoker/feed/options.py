"""The options of a loader: arguments, plan and environment, resolved once into one value that does not change.

A plan never overrules an argument that was given. Options that make no sense are refused here, before anything is made.
"""

import os
import platform
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch.utils.data

from stoker.errors import ConfigError, warn
from stoker.host import ranks
from stoker.internals import expected
from stoker.plan import CACHE_POLICIES, HOST, PREPS, Plan
from stoker.units import parse_bytes, parse_place


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of a loader that are not torch's, and those of torch's that a plan may fill."""

    num_workers: int
    prefetch_factor: int | None
    workers: str
    seed: int | None
    cache: Any
    """In bytes, once it is resolved."""
    cache_policy: str
    cache_dir: str | os.PathLike[str] | None
    group: str | None
    group_bytes: Any
    group_patience_s: float | None
    cache_disk: str | None = None
    ranks: str | None = None
    peers: str | None = None
    offload: str | None = None
    offload_ratio: float | None = None
    """The part of all batches that other hosts may prepare at most. Only a plan says it."""
    offload_workers: int | None = None
    """How many workers Ray starts. Only a plan says it, or the address."""
    offload_part: str | None = None
    """What they do of a batch; see `remote/parts`. Only a plan says it."""
    readers: int | None = None
    """Readers of the host's keeper; None: as many as are usual. Only a plan says it."""
    moves_readers: bool | None = None
    prep: str | None = None
    plan: Plan | str | os.PathLike[str] | None = None
    is_cache_planned: bool = False
    """Whether the cache is a plan's wish, not the script's."""
    is_policy_planned: bool = False
    """Whether the cache's policy is: that is obeyed where it can be."""
    given: frozenset[str] = frozenset()
    """The arguments that were given explicitly."""

    def resolved(self, dataset: Any, default_plan: Plan) -> "Options":
        """These options with those of the plan added, and checked."""
        plan = self.plan if isinstance(self.plan, Plan) else default_plan if self.plan is None else Plan.load(self.plan)
        if is_wanted() and expected.difference() is not None:
            expected.fall_back(self._asked())
            plan = replace(
                plan,
                workers=None,
                cache_bytes=None,
                cache_disk=None,
                group=None,
                seed=None,
                share_ranks=None,
                peers=None,
                offload=None,
                prep=None,
            )
        return self._planned(plan, dataset)._checked(dataset)

    def _asked(self) -> list[str]:
        """The options that torch's own loader does not have."""
        asked = {"seed=": self.seed is not None, "group=": self.group is not None, "cache=": self.cache is not None}
        asked |= {"ranks='shared'": self.ranks == "shared", "peers=": self.peers is not None}
        asked |= {"offload=": self.offload is not None, "cache_disk=": self.cache_disk is not None}
        asked |= {"prep=": self.prep not in (None, HOST)}
        return [name for name, is_asked in (asked | {"workers='threads'": self.workers == "threads"}).items() if is_asked]

    def _planned(self, plan: Plan, dataset: Any) -> "Options":
        # `given` has the user's arguments. A subclass may add others: a value other than the default counts as given, too.
        # An iterable dataset may give other samples with another number of workers.
        found: dict[str, Any] = {}
        streams = isinstance(dataset, torch.utils.data.IterableDataset)

        def is_open(name: str, default: Any) -> bool:
            return name not in self.given and getattr(self, name) == default

        if plan.workers is not None and is_open("workers", "processes") and not streams:
            found["workers"] = plan.workers
        if plan.num_workers is not None and is_open("num_workers", 0) and not streams:
            found["num_workers"] = plan.num_workers
        if plan.prefetch_factor is not None and is_open("prefetch_factor", None):
            found["prefetch_factor"] = plan.prefetch_factor if found.get("num_workers", self.num_workers) else None
        if plan.seed is not None and is_open("seed", None) and not streams:
            found["seed"] = plan.seed
        if plan.share_ranks and is_open("ranks", None):
            found["ranks"] = "shared"
        if plan.peers is not None and is_open("peers", None):
            if self.cache or plan.cache_bytes:
                found["peers"] = plan.peers
            elif is_enabled():
                warn("the plan names peers, but no cache: hosts give each other what caches hold. Say cache= or --cache")
        has_cache = bool(self.cache or plan.cache_bytes) and self.cache_policy == "keep-first"
        if plan.cache_disk is not None and is_open("cache_disk", None) and has_cache:
            found["cache_disk"] = plan.cache_disk
        if (
            plan.offload is not None
            and is_open("offload", None)
            and found.get("num_workers", self.num_workers)
            and not streams
        ):
            found["offload"] = plan.offload
        if plan.prep is not None and is_open("prep", None):
            found["prep"] = plan.prep
        found |= {"offload_ratio": plan.offload_ratio, "offload_workers": plan.offload_workers}
        found["offload_part"] = plan.offload_part
        found |= {"readers": plan.readers, "moves_readers": plan.move_readers}
        if plan.group is not None and is_open("group", None) and not streams:
            found["group"] = plan.group
        if plan.cache_bytes is not None and is_open("cache", None):
            found |= {"cache": plan.cache_bytes, "is_cache_planned": True}
            found["cache_dir"] = plan.cache_dir if self.cache_dir is None else self.cache_dir
            is_alone = found.get("group", self.group) is None
            seed = found.get("seed", self.seed)
            is_ours = _is_ours(dataset)
            disk = found.get("cache_disk", self.cache_disk)
            if plan.cache_policy is not None and seed is not None and is_ours and is_alone and not disk:
                found["cache_policy"] = plan.cache_policy
            if (
                not disk
                and plan.cache_policy == "reuse-distance"
                and found.get("peers", self.peers)
                and is_alone
                and not is_ours
            ):
                found |= {"cache_policy": plan.cache_policy, "is_policy_planned": True}
        return replace(self, **found)

    def _checked(self, dataset: Any) -> "Options":
        if self.workers not in ("processes", "threads"):
            raise ConfigError(f"workers must be 'processes' or 'threads', not {self.workers!r}")
        if self.ranks not in (None, "shared"):
            raise ConfigError(f"ranks must be 'shared' or None, not {self.ranks!r}")
        if self.prep not in (None, *PREPS):
            raise ConfigError(f"prep must be one of {', '.join(map(repr, PREPS))}, not {self.prep!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed must be a whole number or None, not {self.seed!r}")
        if not is_enabled():
            return self
        checked = self
        if self.cache is not None:
            checked = replace(checked, cache=parse_bytes(self.cache, "cache"))
        if self.cache_policy not in CACHE_POLICIES:
            raise ConfigError(f"cache_policy must be one of {', '.join(CACHE_POLICIES)}, not {self.cache_policy!r}")
        if self.cache_disk is not None:
            self._check_disk()
        if self.peers is not None:
            self._check_peers(dataset)
            if self.peers == "auto" and ranks.hosts() == 1:
                checked = replace(checked, peers=None, cache_policy="keep-first")
        elif self.cache_policy != "keep-first":
            self._check_order_is_known(dataset)
        if self.offload is not None:
            from stoker.remote import address

            address.check(self.offload)
            if not self.num_workers:
                raise ConfigError(
                    "offload= needs num_workers=1 or more: without workers the loop prepares all batches itself"
                )
            if self.group is not None:
                raise ConfigError(
                    "offload= does not go with group=: batches of a group are made by its jobs. Leave one out"
                )
        if self.group is not None:
            checked = checked._checked_in_group(dataset)
        return checked

    def _check_disk(self) -> None:
        parse_place(str(self.cache_disk), "cache_disk")
        if self.cache is None:
            raise ConfigError("cache_disk= needs cache=: the disk keeps what memory has no room for")
        if self.cache_policy != "keep-first":
            raise ConfigError(
                f"cache_disk= goes with cache_policy='keep-first', not with {self.cache_policy!r}: what is written to the "
                "disk stays there. Leave one out"
            )

    def _check_peers(self, dataset: Any) -> None:
        from stoker.wire.addresses import local_addresses, parse_addresses
        from stoker.wire.secret import VARIABLE, shared_secret
        from stoker.wire.tls import from_environment

        if self.cache is None:
            raise ConfigError("peers= needs cache=: hosts give each other what their caches hold")
        if self.cache_policy == "lru":
            raise ConfigError("peers= goes with cache_policy='keep-first' or 'reuse-distance', not with 'lru'")
        if self.cache_policy != "keep-first" and _is_ours(dataset):
            raise ConfigError(
                "peers= with cache_policy='reuse-distance' needs a dataset that opens files by itself and keeps their "
                "paths in a list; a stoker.Dataset goes with 'keep-first'"
            )
        if self.cache_policy != "keep-first" and self.group is not None:
            raise ConfigError("peers= with cache_policy='reuse-distance' does not go with group=; 'keep-first' does")
        if self.peers != "auto":
            local_addresses(parse_addresses(str(self.peers)))
        if self.peers != "auto" or os.environ.get(VARIABLE):
            shared_secret()
        from_environment()

    def _check_order_is_known(self, dataset: Any) -> None:
        from stoker.tensor.dataset import of_stoker  # not at the top: on other systems it cannot even be imported

        if self.seed is None or of_stoker(dataset) is not dataset:
            raise ConfigError(
                f"cache_policy={self.cache_policy!r} needs seed=n and a stoker.Dataset: only then the order of all reads "
                "is known where the policy decides. 'keep-first' works with any dataset."
            )
        if self.group is not None:
            raise ConfigError(
                f"cache_policy={self.cache_policy!r} does not go with group=: samples of a group are read by the job that "
                "comes first, in no order that is known before. 'keep-first' works in groups."
            )

    def _checked_in_group(self, dataset: Any) -> "Options":
        from stoker.group.door import check_name

        check_name(self.group)
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise ConfigError("group= needs a map-style dataset: a stream is not the same for every job")
        if self.group_patience_s is not None and not self.group_patience_s > 0:
            raise ConfigError(f"group_patience_s must be a number of seconds above 0, not {self.group_patience_s!r}")
        if self.group_bytes is None:
            return self
        return replace(self, group_bytes=parse_bytes(self.group_bytes, "group_bytes"))


def _is_ours(dataset: Any) -> bool:
    from stoker.tensor.dataset import Dataset  # not at the top: see `_check_order_is_known`

    return isinstance(dataset, Dataset)


def is_enabled() -> bool:
    """Whether loaders are ours here, and not torch's own."""
    return is_wanted() and expected.difference() is None


def is_wanted() -> bool:
    """Whether the user wants our loaders here: `STOKER_DISABLE` is not set, and this is Linux."""
    if os.environ.get("STOKER_DISABLE", "0") not in ("", "0"):
        return False
    if platform.system() == "Linux":
        return True
    warnings.warn("stoker.DataLoader works on Linux; here it behaves as torch's own", stacklevel=6)
    return False
