"""Whether a loader shares its workers with other ranks of its job on this host, and with which.

Ranks with the same dataset and seed can prepare each other's batches: the result depends on positions alone. They find each
other by an entry in a folder of this user's. No rank waits for another one to come.
"""

import os
from pathlib import Path
from typing import Any

import torch.utils.data

from stoker.errors import warn
from stoker.feed.digest import NoDigestError, digest_of
from stoker.feed.progress import is_batched, samplers_of
from stoker.host import folders, process, ranks
from stoker.host.sockets import take_name
from stoker.internals.ranks import rank_and_world
from stoker.slots.offers import NotOfferedError


def folder() -> Path:
    """Where ranks of this user find each other."""
    try:
        found = folders.make_home() / "ranks"
        folders.make(found)
    except OSError as error:
        raise NotOfferedError(str(error)) from error
    return found


def job_of(loader: Any, *, is_steered: bool = False) -> str | None:
    """What all ranks that may help each other have in common; None if this loader is not to share. A cache that is steered
    follows the order of one rank."""
    if loader.ranks != "shared" and loader.offload is None:
        return None
    why = _obstacle(loader)
    if why is None and is_steered:
        why = f"a cache with cache_policy={loader.cache_policy!r} follows the order of one rank's own workers"
    if why is None:
        try:
            batched = "" if is_batched(loader) else " whole"
            return f"{launch()} {loader.seed}{batched} {digest_of(loader.dataset, loader.collate_fn)}"
        except NoDigestError as error:
            why = str(error)
    if why:
        say(loader, why)
    return None


def is_unchanged(collate_fn: Any, job: str, dataset: Any) -> bool:
    """Whether a dataset is as it was when its job was named. A worker asks when it has made a batch."""
    try:
        return job.endswith(digest_of(dataset, collate_fn))
    except NoDigestError:
        return False


def say(loader: Any, why: str) -> None:
    """Say why workers are not shared: once in the whole job on this host, by the rank that comes first."""
    if not loader._told_about_ranks:
        loader._told_about_ranks = True
        if _is_first(f"{launch()} {why}"):
            what = "offload=: everything is prepared on this host" if loader.offload else _KEPT
            warn(f"{what}, because {why}")


_KEPT = "ranks='shared': each rank keeps its own workers"


_said: list[int] = []
"""Descriptors of the names that this process has taken, for as long as it lives."""


def _is_first(what: str) -> bool:
    """Whether no living process of this user has asked for the same before."""
    taken = take_name(f"said {what}")
    if taken is None:
        return False
    _said.append(taken.detach())
    return True


def _obstacle(loader: Any) -> str | None:
    """Why workers of other ranks cannot help, in words; "" if there is nothing to be said about it."""
    if not loader.num_workers or (_world(loader) == 1 and loader.offload is None):
        return ""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return "a stream has no positions that another rank could begin at"
    if loader.workers != "processes":
        return "worker threads belong to their process"
    if not loader.in_order:
        return "in_order=False takes batches as its own workers finish them"
    if loader.worker_init_fn is not None:
        return "worker_init_fn may make every worker another one"
    if loader.group is not None:
        return "in a group workers serve one rank of all its jobs: batches are shared with that rank of the other jobs"
    return None


def _world(loader: Any) -> int:
    """How many ranks there are, as far as anybody says."""
    names = "num_replicas", "num_processes"  # torch's samplers, and Accelerate's
    said = [getattr(sampler, name, 1) for sampler in samplers_of(loader) for name in names]
    return max(rank_and_world()[1], ranks.world(), *(count for count in said if isinstance(count, int)))


def launch() -> str:
    """The launch that this process belongs to: where its ranks meet, or what started it."""
    meeting = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    if meeting.strip(":"):
        return meeting
    parent = process.find(os.getppid())
    return f"{os.getppid()}:{parent.started if parent is not None else 0}"
