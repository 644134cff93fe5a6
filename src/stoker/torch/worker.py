"""What happens in a worker process of the loader.

torch's own worker loop runs there. `begin` comes before it, and `collate` stands where it calls `collate_fn`. Every batch
leaves as a `Plain`, a message of some hundred bytes about a slot; unpickling it in the training process gives the batch.
"""

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils import worker as torch_worker

from stoker.host.parent import end_with_parent
from stoker.meter import Counts, now
from stoker.prep.batch import Layout, NoLayout, Piece, build, lay_out, pack, unpack
from stoker.stage.area import Area
from stoker.stage.inbox import Inbox
from stoker.stage.messages import Plain
from stoker.stage.outbox import Outbox
from stoker.torch.caching import Caching
from stoker.torch.leaves import TensorLeaves, TensorReducer, collate_into, leaf_over

_NEVER_S = 86400.0
NOT_COMMON = -1

Pickled = tuple[bytes | Piece, tuple[Piece, ...]]


class Worker:
    """The worker's part of a loader; made in the training process, begun once in each worker."""

    outbox: Outbox

    def __init__(
        self, area: Area, collate_fn: Callable[[Any], Any], caching: Caching, *, batched: bool, forked: bool
    ) -> None:
        self.area = area
        self.collate_fn = collate_fn
        self.caching = caching
        self.batched = batched
        self.forked = forked

    def begin(self, number: int) -> Callable[[Any], None] | None:
        """Prepare this process. What is returned wants to know of orders to come."""
        if self.forked:
            leave_inherited()
        if end_with_parent():
            # The watch above replaces torch's look at the parent every few seconds, which would wake an idle worker.
            torch_worker.MP_STATUS_CHECK_INTERVAL = _NEVER_S  # type: ignore[attr-defined]
        self.pid = os.getpid()
        self.outbox = Outbox(self.area, number)
        seeded = hasattr(self.collate_fn, "outbox")
        if seeded:
            self.collate_fn.outbox = self.outbox  # type: ignore[attr-defined]
        collate_into(self.outbox, alike_everywhere=seeded)
        return self.caching.begin()

    def collate(self, samples: Any) -> Any:
        """Collate into a slot and announce it. When every slot is kept by somebody, the batch goes torch's way."""
        if os.getpid() != self.pid:  # whose slots these are
            raise RuntimeError("a process that the dataset forked has come back from it: a child must end by os._exit()")
        outbox = self.outbox
        common = getattr(samples, "common", NOT_COMMON)
        joined = common != NOT_COMMON and outbox.join(common)
        if not joined and not outbox.claim():
            return self.collate_fn(samples)
        layout = pickled = None
        try:
            batch = self.collate_fn(samples)
            if joined and type(batch) is list and not outbox.used:  # samples of a kind that has no rows
                outbox.abandon()
                if not outbox.claim():
                    return batch
                joined = False
            collated = outbox.used
            try:
                layout = lay_out(batch, TensorLeaves(outbox))
            except NoLayout:
                outbox.rewind(collated)
                pickled = pack(batch, {torch.Tensor: TensorReducer()}, outbox)
            slot = outbox.announce()
        finally:
            outbox.abandon()
        count = count_samples(samples) if self.batched else 1
        return Plain((outbox.worker, count, now(), slot, layout, pickled, joined, self.caching.take(), self._draws()))

    def _draws(self) -> bool:
        return bool(getattr(self.collate_fn, "draws", False))


def are_forked(context: Any) -> bool:
    """Whether the processes of a multiprocessing context inherit the objects of this one."""
    return bool(context.get_start_method() == "fork")


def leave_inherited() -> None:
    """In a forked worker: what was inherited is the training process's to collect.

    Finalizers of its garbage must not run here, where they would lock queues and end workers that are not ours; and pages
    that are not looked at stay shared. A worker that is started anew has inherited nothing, and collects all it has when it
    ends: extension modules complain of objects that are left.
    """
    gc.freeze()


def explain(error: Exception, report: Any) -> ExceptionWrapper:
    """What is reported when a report cannot be pickled: the user's error in other words, or why not."""
    if isinstance(report, ExceptionWrapper):
        report.exc_type = RuntimeError
        return report
    info = torch.utils.data.get_worker_info()
    return ExceptionWrapper((type(error), error, error.__traceback__), f"in DataLoader worker process {info and info.id}")


def count_samples(samples: Any) -> int:
    """How many samples a batch is made of; a dataset's own batches may not say."""
    try:
        return len(samples)
    except TypeError:
        return 1


class Arrived:
    """A batch in the training process, with what the meter wants to know of it."""

    __slots__ = ("batch", "counts", "draws", "finished", "samples")

    def __init__(self, batch: Any, samples: int, finished: float, counts: Counts | None, draws: bool = False) -> None:
        self.batch = batch
        self.samples = samples
        self.finished = finished
        self.counts = counts
        self.draws = draws

    def pin_memory(self, device: str | None = None) -> "Arrived":
        """Copy into page-locked memory, as torch's pinning thread asks every object that can."""
        self.batch = pin_memory.pin_memory(self.batch, device)
        return self


class Opener:
    """Makes a batch of what `Worker.collate` reports, over the slot that it lies in."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def __call__(
        self,
        worker: int,
        samples: int,
        finished: float,
        slot: tuple[int, int, int],
        layout: Layout,
        pickled: Pickled | None,
        joined: bool,
        counts: Counts | None,
        draws: bool,
    ) -> Arrived:
        """Open one. A slot that others are filling, too, is left closed."""
        content = Share(slot, layout) if joined else self.open(worker, slot, layout, pickled)
        return Arrived(content, samples, finished, counts, draws)

    def open(self, row: int, slot: tuple[int, int, int], layout: Layout, pickled: Pickled | None = None) -> Any:
        """The batch in a slot."""
        number, length, used = slot
        memory, is_pinned = self.inbox.open((row, number), length, used)
        batch = unpack(*pickled, memory) if pickled else build(layout, leaf_over(memory))
        if self.inbox.pins is not None and not is_pinned:
            batch = pin_memory.pin_memory(batch)
        return batch

    def open_common(self, shares: "list[Share]") -> Any:
        """The batch that several workers have filled together."""
        length = max(share.slot[1] for share in shares)
        number, _, used = shares[0].slot
        return self.open(self.inbox.area.common, (number, length, used), shares[0].layout)


class Share:
    """One worker's part of a batch that is filled by several, in a slot that is not open yet."""

    __slots__ = ("layout", "slot")

    def __init__(self, slot: tuple[int, int, int], layout: Layout) -> None:
        self.slot = slot
        self.layout = layout
