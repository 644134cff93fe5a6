"""`Work` is what to prepare, `Made` is the result: the values that go between the training process and its workers.

If all their fields are plain values they are marshalled, which takes a tenth of the time of pickling.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stoker.batch import Layout, Span
from stoker.cache.steering import KeptAndForgotten
from stoker.meter import Counts
from stoker.order import Ids
from stoker.slots.messages import Plain, is_plain

NOT_COMMON = -1
"""Stands for a slot where a batch that several workers prepare has none in common."""

COLLATE = "collate"


class Report:
    """What a worker tells beside its batches."""

    BEGUN = "begun"
    ENDED = "ended"


Pickled = tuple[bytes | Span, tuple[Span, ...]]


class AsItIs(np.ndarray[Any, Any]):
    """Indices that a user's sampler gave as an array. On their way to a worker only: the dataset gets a plain array."""


class Part(NamedTuple):
    """The rows of a batch that one of several workers prepares."""

    slot: int
    """The slot that all of them fill, or NOT_COMMON."""
    start: int
    total: int
    """How many rows the whole batch has."""


class Work(NamedTuple):
    """Samples that are prepared together. Their positions in the order are first, first + step, ..."""

    epoch: int
    first: int
    step: int
    ids: Sequence[Any] | Ids | bytes
    """Indices of the dataset; as bytes where all are plain numbers, because that is faster to send."""
    part: Part | None = None
    decision: KeptAndForgotten | None = None
    """What a cache keeps and forgets, if a policy decides ahead."""

    @property
    def indices(self) -> Sequence[Any]:
        """The indices as the dataset gets them."""
        return listed(self.ids)

    def as_plain(self) -> Plain | None:
        """This work as plain values for a line, if its indices are plain."""
        ids: Any = self.ids
        if type(ids) is np.ndarray:
            ids = ids.tobytes()
        elif type(ids) is not bytes and not is_plain(ids):
            return None
        return Plain((*self[:3], ids, None if self.part is None else tuple(self.part), self.decision))


def work_of(values: Sequence[Any]) -> Work:
    """Undo `Work.as_plain`."""
    epoch, first, step, ids, part, decision = values
    return Work(epoch, first, step, ids, None if part is None else Part(*part), decision)


class Made(NamedTuple):
    """A batch that was made: where it lies and what it looks like, or the batch itself."""

    samples: int
    finished: float
    """When the batch was finished, by the meter's clock."""
    prep_s: float
    """How many seconds preparing took."""
    counts: Counts | None
    """What was counted while samples were fetched."""
    draws: bool = False
    """Whether the dataset was seen to draw from a default generator."""
    place: tuple[int, int, int, int] | None = None
    """Row and number of its slot, the length of its mapping, the bytes in use. None: `batch` is the batch."""
    layout: Layout = None
    pickled: Pickled | None = None
    """How to read the slot if there is no layout."""
    is_part: bool = False
    """Whether others are filling the same slot."""
    batch: Any = None
    rest: Any = None
    """What is left to be done in the training process: COLLATE, what `device/samples` says, or nothing."""
    state: Any = None
    """The state of the worker's dataset after this batch, if it has one; see `pool/stateful`."""


def listed(ids: Any) -> Sequence[Any]:
    """A Work's indices, in any of their forms, as the dataset gets them."""
    if type(ids) is bytes:
        return np.frombuffer(ids, np.int64).tolist()  # type: ignore[no-any-return]
    return ids.tolist() if type(ids) is np.ndarray else ids  # type: ignore[no-any-return]
