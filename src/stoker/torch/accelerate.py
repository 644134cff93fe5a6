"""A `stoker.DataLoader` under Accelerate.

    loader = prepare(accelerator, stoker.DataLoader(dataset, 64, shuffle=True, num_workers=8, seed=7))

Accelerate makes a loader of torch's, or of torchdata's with `use_stateful_dataloader=True`, from the arguments that it
knows. Neither has a seed, threads or a cache. Here Accelerate shards, moves batches to the device and counts as ever, but
what it does that with is a loader of ours. So its own `save_state`, `load_state`, `state_dict()` and `load_state_dict()`
hold where the training loop is, and torchdata is not needed for that.
"""

import inspect
from typing import Any

from torch.utils.data import IterableDataset

from stoker.errors import ConfigError
from stoker.torch.loader import DataLoader

_DECIDED_BY_ACCELERATE = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}


def prepare(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """What `accelerator.prepare(loader)` gives, with a loader like this one at its heart."""
    prepared = accelerator.prepare_data_loader(loader)
    base = getattr(prepared, "base_dataloader", None)
    if base is None:
        raise ConfigError(
            f"{type(prepared).__name__} of this Accelerate has no base_dataloader that could be a loader of ours"
        )
    shared = getattr(prepared, "synchronized_generator", None)
    if shared is not None and loader.generator is None and loader.seed is not None:
        shared.manual_seed(loader.seed)  # what all processes shuffle by is Accelerate's, and was set at random
    prepared.base_dataloader = _like(loader, base)
    prepared.use_stateful_dataloader = True
    prepared.dl_state_dict = prepared.base_dataloader.state_dict()
    return prepared


def _like(loader: DataLoader[Any], base: Any) -> DataLoader[Any]:
    """A loader like ours that gives what Accelerate's would."""
    if base.dataset is loader.dataset and base.batch_sampler is loader.batch_sampler:
        return loader
    if loader.group is not None:
        raise ConfigError("batches of a group are the same for all its members: Accelerate cannot shard them, too")
    names = set(inspect.signature(DataLoader.__init__).parameters) - _DECIDED_BY_ACCELERATE
    options: dict[str, Any] = {name: getattr(loader, name) for name in names}
    if isinstance(base.dataset, IterableDataset):
        options |= {"batch_size": base.batch_size, "drop_last": base.drop_last}
    elif base.batch_sampler is None:
        options |= {"batch_size": None, "sampler": base.sampler}
    else:
        options["batch_sampler"] = base.batch_sampler
    return DataLoader(base.dataset, **options)
