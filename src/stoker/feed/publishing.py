"""What a loader publishes for `stoker top` when it is first iterated.

The script's arguments are not published: they may be secrets.
"""

import itertools
import os
import sys
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker.host import process, ranks
from stoker.live.folder import publish
from stoker.live.record import Facts, Record
from stoker.meter import now

_KNOWN = (DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
_numbers = itertools.count()


def publish_loader(loader: Any) -> Record | None:
    """Make a record for a loader in this process. None if publishing is off or not possible."""
    pid, started = process.own()
    if not started:
        return None
    facts = Facts(
        pid=pid,
        started=started,
        namespace=process.namespace(),
        rank=ranks.rank(),
        number=next(_numbers),
        made_at=now(),
        kind=loader.workers,
        script=script_name(),
        dataset=_name(loader.dataset),
        cache=_cache(loader),
        **_seat(loader),
    )
    record = publish(facts)
    if record is not None:
        record.length(_length(loader))
    return record


def role_of(loader: Any) -> str:
    """What a loop that begins now does with the loader's batches, if that can be told: one of ROLES.

    Without gradients it evaluates. With them it trains, unless samples come in order: some evaluate step by step.
    """
    if not torch.is_grad_enabled():
        return "eval"
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    is_in_order = isinstance(sampler, SequentialSampler) or not getattr(sampler, "shuffle", True)
    return "" if is_in_order else "train"


def _seat(loader: Any) -> dict[str, Any]:
    """The loader's group and member number, if it is in a group."""
    member = loader.here.member_so_far
    if member is None:
        return {}
    address = member.seat.address
    return {"group": member.seat.name, "stream": os.path.basename(address.folder), "member": address.member}


def _cache(loader: Any) -> str:
    """The name of the folder of the loader's cache, if it has one."""
    if loader.cache is None:
        return ""
    cache = loader.here.caching.cache
    return "" if cache is None or cache.folder is None else cache.folder.name


def script_name() -> str:
    """The name of the script that this process runs, without its arguments."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return f"-m {spec.name.removesuffix('.__main__')}"
    return str(sys.argv[0]) if getattr(sys, "argv", None) else ""


def _name(dataset: Any) -> str:
    name = type(dataset).__name__
    return f"{name}({type(dataset.dataset).__name__})" if type(dataset) is Subset else name


def _length(loader: Any) -> int:
    """The number of batches in an epoch, if torch alone can tell; else 0."""
    batches: Any = loader.batch_sampler
    sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    if type(sampler) not in _KNOWN or (batches is not None and type(batches) is not BatchSampler):
        return 0
    try:
        return len(sampler) if batches is None else len(batches)
    except Exception:  # a dataset without a length, under a sampler that does not need it
        return 0
