"""Slots carry batches from workers to the training process without a copy. A batch stays valid while anything refers to it.

Every worker owns a row of slots in one shared Memory. One byte per slot says whose turn it is, and each side writes it
in one direction only, so there is no lock:

    FREE (0)  --  the worker has filled the slot and announces it  -->  LENT (1)
    LENT (1)  --  the training process dropped the last array over it  -->  FREE (0)

One more row is common: the training process claims a slot of it (FREE -> LENT) for a batch that several workers fill
together, each its own samples, and opens it when all workers have reported.

The training process sees a slot through a *lease*, an array whose death ends the loan. Everything made from the batch
(tensors, slices, `numpy()`) keeps the lease alive. A small batch, or one that comes when many are kept already, is copied
out at once instead. Nothing here waits.

A forked child would look at the slots, and no lease would count it. So just before a fork every lent batch is turned into
private memory in place. The child then has its own copy, as it has of all other memory.
"""

import resource
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ResourceError
from stoker.memory import PAGE, Mapping, Memory, PrivateMemory

KEPT_AS_VIEWS = 16
"""How many batches of one worker may be kept as views; further ones are copied out."""
SMALLEST_SLOT = 1 << 16
_STRIDE = 1 << 38
"""Address space of a slot: more than any batch, and free until touched."""

SlotPlace = tuple[int, int]
"""A row, which is a worker's or the common one, and the number of a slot in it."""


class Area:
    """The shared memory of one iterator: a row of slots for each worker, and a common one. Travels to workers."""

    def __init__(
        self, workers: int, prefetch: int, *, memory: Memory | PrivateMemory | None = None, kept: int = KEPT_AS_VIEWS
    ) -> None:
        self.workers = workers
        self.rows = workers + 1
        self.prefetch = prefetch
        self.usual = prefetch + 2  # batches under way, the one that the user has, and the next one
        # A worker takes the lowest free slot, so a high number means that the user keeps many batches.
        self.lendable = self.usual + kept
        self.slots = self.lendable + prefetch  # batches under way while all other slots are kept
        self._head_bytes = -(-self.rows * self.slots * 9 // PAGE) * PAGE
        self.stride = _STRIDE
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:  # the limit holds for files without a name, too
            self.stride = min(_STRIDE, (limit - self._head_bytes) // (self.rows * self.slots) // PAGE * PAGE)
            if self.stride < SMALLEST_SLOT:
                raise ResourceError(f"files may have {limit:,} bytes only, too few for batches: raise `ulimit -f`")
        self.memory: Any = memory or Memory(self._head_bytes + self.rows * self.slots * self.stride)
        self.memory.reserve(0, self._head_bytes)

    @property
    def common(self) -> int:
        """The number of the common row."""
        return self.workers

    def offset(self, place: SlotPlace) -> int:
        """Where in the memory a slot begins."""
        worker, slot = place
        return self._head_bytes + (worker * self.slots + slot) * self.stride

    def discard(self, place: SlotPlace) -> None:
        """Give the memory of a slot back."""
        self.memory.discard(self.offset(place), self.stride)


class Head:
    """What both sides know of each slot: whose turn it is, and how many of its bytes have been touched."""

    def __init__(self, area: Area) -> None:
        shape = area.rows, area.slots
        self._mapping = area.memory.map(0, area._head_bytes)
        self.touched: NDArray[np.int64] = np.ndarray(shape, np.int64, self._mapping.buffer)
        self.turns: NDArray[np.uint8] = np.ndarray(shape, np.uint8, self._mapping.buffer, self.touched.nbytes)


class SlotLease(np.ndarray[Any, Any]):
    """All bytes of a slot. Users get arrays that lie over it and keep it alive, never the lease itself."""

    mapping: Mapping


def lease_of(mapping: Mapping) -> SlotLease:
    """A new lease of all bytes of a slot."""
    lease = mapping.view(SlotLease)
    lease.mapping = mapping  # type: ignore[attr-defined]
    return lease  # type: ignore[return-value]
