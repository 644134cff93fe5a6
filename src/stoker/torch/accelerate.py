"""A `stoker.DataLoader` under Accelerate.

    loader = prepare(accelerator, stoker.DataLoader(dataset, 64, shuffle=True, num_workers=8, seed=7))

Accelerate would make a loader of torch's, or of torchdata's with `use_stateful_dataloader=True`, from the arguments that it
knows. Neither has a seed, threads or a cache. With `prepare`, Accelerate still shards, moves batches to the device and
counts, but it gets its batches from a loader of ours. So its own `save_state`, `load_state`, `state_dict()` and
`load_state_dict()` hold where the training loop is, and torchdata is not needed for that.
"""

import inspect
from typing import Any

from torch.utils.data import IterableDataset

from stoker.errors import ConfigError
from stoker.torch.loader import DataLoader

_DECIDED_BY_ACCELERATE = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}


def prepare(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """Return what `accelerator.prepare(loader)` returns, with a loader of ours inside instead of torch's."""
    prepared = accelerator.prepare_data_loader(loader)
    base = getattr(prepared, "base_dataloader", None)
    if base is None:
        raise ConfigError(
            f"{type(prepared).__name__} of this Accelerate has no base_dataloader that could be a loader of ours"
        )
    shared = getattr(prepared, "synchronized_generator", None)
    if shared is not None and loader.generator is None and loader.seed is not None:
        shared.manual_seed(loader.seed)  # Accelerate's own seed for shuffling, which it drew at random for all processes
    prepared.base_dataloader = _like(loader, base)
    prepared.use_stateful_dataloader = True
    prepared.dl_state_dict = prepared.base_dataloader.state_dict()
    return prepared


def _like(loader: DataLoader[Any], base: Any) -> DataLoader[Any]:
    """Make a loader of ours that gives the batches of Accelerate's."""
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
