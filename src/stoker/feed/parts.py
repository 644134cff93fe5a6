"""Which parts of the preparation other hosts can do for a loader (`remote/parts`), as far as the loader itself tells.

What only a trial tells the relay finds out: whether the dataset opens files from Python, and whether samples are shorter
than their batch.
"""

import os
from typing import Any

import torch.utils.data

from stoker.cache.roots import roots_of
from stoker.feed.progress import is_batched
from stoker.remote.parts import PREPARE, SAMPLES
from stoker.tensor.dataset import of_stoker


def candidates(loader: Any) -> dict[str, str]:
    """Why parts cannot work for a loader, or are of no use, in words for people. Those that may work are not in it."""
    against = {}
    if of_stoker(loader.dataset) is not None:
        against[PREPARE] = "a stoker.Dataset reads its samples itself, not by open()"
    elif not folders_of(loader):
        against[PREPARE] = "no attribute of the dataset names a folder or file, so no file of this host may be asked for"
    if loader.seed is None:
        against[SAMPLES] = "without a seed collate_fn may draw, and belongs where its samples are made"
    elif not is_batched(loader):
        against[SAMPLES] = "with batch_size=None a batch is one sample"
    elif loader.collate_fn is torch.utils.data.default_collate:
        against[SAMPLES] = "torch's default collate_fn makes batches that are as long as their samples"
    return against


def folders_of(loader: Any) -> tuple[str, ...]:
    """The folders whose files remote workers may ask for; none if the dataset names none."""
    roots = roots_of(loader.dataset)
    return () if roots == (os.sep,) else roots
