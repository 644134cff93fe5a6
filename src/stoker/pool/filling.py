"""Putting batches into slots, and making batches of slots again."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stoker.batch import Layout, NoLayout, build, lay_out, pack, unpack
from stoker.memory import ByteArray
from stoker.pool.work import Pickled
from stoker.slots.outbox import Outbox
from stoker.tensor.leaves import TensorLeaves, TensorReducer, leaf_over

Reducers = Callable[[], Mapping[type, Callable[[Any], tuple[Any, ...]]]]


def one_reader() -> Mapping[type, Callable[[Any], tuple[Any, ...]]]:
    """How tensors are pickled in a batch that goes to one process."""
    return {torch.Tensor: TensorReducer()}


def fill(batch: Any, outbox: Outbox, reducers: Reducers = one_reader) -> tuple[Layout, Pickled | None]:
    """Put what is not in the claimed slot yet there. Returns the batch's layout, or how it was pickled."""
    collated = outbox.used
    try:
        return lay_out(batch, TensorLeaves(outbox)), None
    except (NoLayout, RecursionError):  # a list that holds itself has no layout, and can be pickled
        outbox.rewind(collated)
        return None, pack(batch, reducers(), outbox)


def read(layout: Layout, pickled: Pickled | None, memory: ByteArray) -> Any:
    """The batch in a slot. Its tensors lie over `memory` and keep it alive."""
    return build(layout, leaf_over(memory)) if pickled is None else unpack(*pickled, memory)
