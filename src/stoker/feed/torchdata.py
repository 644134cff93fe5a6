"""States that torchdata's StatefulDataLoader wrote, as states of ours. torchdata itself is not needed."""

from typing import Any

import torch
from torch.utils.data import IterableDataset, RandomSampler

from stoker.errors import ConfigError
from stoker.feed.resuming import check_workers
from stoker.feed.sampled import Sampled

Values = dict[str, Any]


def adopted(state: Values, loader: Any, order: Values) -> Values:
    """A state of ours that goes on where torchdata's loader would."""
    try:
        return _adopted(state, loader, order)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"this state of torchdata's loader is damaged: {type(error).__name__}: {error}") from error


def _adopted(state: Values, loader: Any, order: Values) -> Values:
    is_fresh = bool(state["_iterator_finished"])
    if "_snapshot" in state:
        snapshot = state["_snapshot"]
        main, workers = snapshot["_main_snapshot"], snapshot["_main_snapshot"]["_num_workers"]
        seen, replayed = snapshot["_snapshot_step"], state["_steps_since_snapshot"]
        owners = [snapshot["_worker_snapshots"][f"worker_{number}"] for number in range(workers)]
        next_worker = (snapshot["_last_yielded_worker_id"] + 1) % workers
    else:
        main, workers, seen, replayed, owners, next_worker = state, 0, state["_num_yielded"], 0, [state], 0
    part: Values = {}
    if any(_dataset(owner) is not None or _iterator(owner) is not None for owner in owners):
        turns = [seen // len(owners) + (number < seen % len(owners)) for number in range(len(owners))]
        states = [_written(owner, 0 if is_fresh else batches) for owner, batches in zip(owners, turns, strict=True)]
        part = {"workers": workers, "next_worker": 0 if is_fresh else next_worker, "states": states}
    sampler = None if isinstance(loader.dataset, IterableDataset) else _sampler(main, loader)
    if sampler:
        part["sampler"] = sampler
    seen = 0 if is_fresh else seen + replayed
    if part:
        part |= {"of": seen, "replayed": 0 if is_fresh else replayed}
        check_workers(part, loader.num_workers)
    return {
        "version": 1,
        "order": order,
        "epoch": max(loader._progress.epoch, 0),
        "samples": seen * (loader.batch_size or 1),
        "samplers": {},
        "begun": not is_fresh,
        **dict.fromkeys(("batches", "_num_yielded", "_sampler_iter_yielded"), seen),
        **({"streams": part} if part else {}),
    }


def _dataset(owner: Values) -> Any:
    return owner.get("dataset_state") or None  # none is written as None, or as {} by some versions


def _iterator(owner: Values) -> Any:
    return (owner.get("fetcher_state") or {}).get("dataset_iter_state") or None


def _written(owner: Values, batches: int) -> Values:
    has_ended = bool((owner.get("fetcher_state") or {}).get("fetcher_ended")) and batches > 0
    state: Values = {"batches": batches, "since": 0, "ended": has_ended}
    found = {"dataset": _dataset(owner), "iterator": _iterator(owner) if batches else None}
    return state | {name: value for name, value in found.items() if value is not None}


def _sampler(main: Values, loader: Any) -> Values:
    """The state of the samplers. torchdata's BatchSampler keeps that of the sampler within in its own."""
    within = main.get("_sampler_iter_state") or {}
    drawn = within.get("sampler_iter_state") or within
    if type(loader.sampler) is RandomSampler and isinstance(drawn.get("generator"), torch.Tensor):
        # torchdata's sampler draws all epochs from one generator.
        loader.sampler.generator = torch.Generator()
        loader.sampler.generator.set_state(drawn["generator"])
        return {}
    if Sampled.of(loader) is None:
        return {}
    is_nested = "samples_yielded" in within
    own = within.get("sampler_state") if is_nested else main.get("_index_sampler_state")
    iterator = within.get("sampler_iter_state") if is_nested else within
    found = {"sampler": own, "iterator": iterator}
    return {name: value for name, value in found.items() if value}
