"""What happens in a worker process of the loader, both under torch's worker loop and under ours (`serving`).

`Beginning` comes first. Every batch is put into a slot and announced by a `Made`, a message of some hundred bytes. The
training process then opens the slot.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

from stoker.cache.notes import noted
from stoker.device.samples import Worker
from stoker.device.samples import begin as begin_recording
from stoker.host.parent import end_with_parent
from stoker.internals.names import ExceptionWrapper, look_for_parent_every, pin_memory
from stoker.memory import keep_freed
from stoker.meter import now
from stoker.plan import HOST
from stoker.pool.filling import Reducers, fill, one_reader, read
from stoker.pool.maker import count_samples
from stoker.pool.work import NOT_COMMON, Made
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox
from stoker.slots.messages import Plain
from stoker.slots.outbox import Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import collate_into
from stoker.tensor.near import cores_near_device

_NEVER_S = 86400.0
_A_CHILD = "a process that the dataset forked has come back from it: a child must end by os._exit()"


class SlotRoom:
    """The slots of a worker process. Made in the training process, begun once in each worker."""

    outbox: Outbox
    _recorded: Worker | None = None

    reducers: Reducers = staticmethod(one_reader)

    def __init__(self, area: Area, caching: Caching, *, alike_everywhere: bool, records: str = HOST) -> None:
        self.area = area
        self.caching = caching
        self.records = records
        """What of the samples is left for the device to do; see `plan.PREPS`."""
        self.alike_everywhere = alike_everywhere
        """Whether workers collate as the training process does; see `leaves`."""

    def begin(self, number: int) -> None:
        """Open the slots of a worker, in its process."""
        self.pid = os.getpid()
        self.outbox = Outbox(self.area, number)
        self.leaves = collate_into(self.outbox, alike_everywhere=self.alike_everywhere)
        self._recorded = None if self.records == HOST else begin_recording(self.records)

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Make a batch in a slot, and announce it. When every slot is in use, the batch travels torch's way."""
        began, outbox = now(), self.outbox
        joined = slot != NOT_COMMON and outbox.join(slot)
        if not joined and not outbox.claim():
            return self._whole(make(), samples, began)
        try:
            batch = make()
            if os.getpid() != self.pid:  # whose slots these are
                raise RuntimeError(_A_CHILD)
            if joined and type(batch) is list and not outbox.used:  # samples of a kind that has no rows
                outbox.abandon()
                if not outbox.claim():
                    return self._whole(batch, samples, began)
                joined = False
            layout, pickled = fill(batch, outbox, self.reducers)
            number, length, used = outbox.announce()
        finally:
            outbox.abandon()
        place = (self.area.common if joined else outbox.worker, number, length, used)
        ended = now()
        made = Made(samples, ended, ended - began, self.caching.take(), False, place, layout, pickled, joined)
        return made if self._recorded is None else made._replace(rest=self._recorded.take())

    def _whole(self, batch: Any, samples: int, began: float) -> Made:
        ended = now()
        rest = None if self._recorded is None else self._recorded.take()
        return Made(samples, ended, ended - began, self.caching.take(), batch=batch, rest=rest)


class Beginning:
    """The first thing that a worker process does, with a seed or without. It is sent there."""

    def __init__(self, room: SlotRoom, *, forked: bool) -> None:
        self.room = room
        self.forked = forked
        self.cores = cores_near_device()

    def sent_to(self, number: int) -> "Beginning":
        """What a worker gets that inherits nothing."""
        return self

    def __call__(self, number: int, reports: Any) -> Callable[[Any], None] | None:
        """Prepare this process. Returns a function to call with the indices of new orders, or None."""
        if self.cores is not None:
            with contextlib.suppress(OSError):  # a cpuset has become smaller meanwhile
                os.sched_setaffinity(0, self.cores)
        if self.forked:
            leave_inherited()
        explain_breakpoints()
        keep_freed()
        if end_with_parent():
            # The watch above replaces torch's check of the parent every few seconds, which would wake an idle worker.
            look_for_parent_every(_NEVER_S)
        self.room.begin(number)
        return self.room.caching.begin()


class SlotCollate:
    """The `collate_fn` that torch's worker loop calls."""

    def __init__(
        self, room: SlotRoom, collate_fn: Callable[[Any], Any], *, batched: bool, batch_size: int | None = None
    ) -> None:
        self.room = room
        self.collate_fn = collate_fn
        self.batched = batched
        self.batch_size = batch_size

    def __call__(self, samples: Any) -> Any:
        """Collate into a slot and announce it."""
        if os.getpid() != self.room.pid:
            raise RuntimeError(_A_CHILD)
        made = self.room.put(lambda: self.collate_fn(samples), count_samples(samples) if self.batched else 1)
        return made if made.place is None else Plain(made)


def noted_order(order: Any) -> Any:
    """An order of torch's iterator, whose indices note what is opened while that is wanted."""
    return (order[0], noted(order[1])) if type(order) is tuple and len(order) == 2 else order


def are_forked(context: Any) -> bool:
    """Whether the processes of a multiprocessing context inherit the objects of this one."""
    return bool(context.get_start_method() == "fork")


def leave_inherited() -> None:
    """In a forked worker: do not garbage-collect objects that were inherited from the training process.

    Their finalizers must not run here, where they would lock queues and end workers that are not ours; and pages that the
    collector does not visit stay shared. A spawned worker has inherited nothing. It collects everything when it ends,
    because extension modules complain of remaining objects.
    """
    gc.freeze()


def explain_breakpoints() -> None:
    """In a worker process: let `breakpoint()` say where it would stop, unless a debugger was chosen for it."""
    if sys.breakpointhook is sys.__breakpointhook__ and "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _cannot_stop


def _cannot_stop(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        'breakpoint() was called in a worker process, which has no terminal: with num_workers=0, or workers="threads", '
        "the debugger stops here"
    )


def explain(error: Exception, report: Any) -> ExceptionWrapper:
    """Replace a report that cannot be pickled: by the user's error in plain words, or by why pickling failed."""
    if isinstance(report, ExceptionWrapper):
        report.exc_type = RuntimeError
        return report
    info = torch.utils.data.get_worker_info()
    return ExceptionWrapper((type(error), error, error.__traceback__), f"in DataLoader worker process {info and info.id}")


class Opened:
    """A batch in the training process, with what the worker reported about it."""

    __slots__ = ("batch", "made")

    def __init__(self, made: Made, batch: Any) -> None:
        self.made = made
        self.batch = batch

    def pin_memory(self, device: str | None = None) -> "Opened":
        """Copy the batch into page-locked memory. torch's pinning thread calls this."""
        self.batch = pin_memory(self.batch, device)
        return self


class Opener:
    """Opens what workers have made: batches over the slots that they lie in."""

    def __init__(self, inbox: Inbox, *, pins: bool) -> None:
        self.inbox = inbox
        self._pins = pins
        """Whether what is not page-locked by its slot is to be copied to where it is."""

    def arrived(self, *values: Any) -> Opened:
        """Turn a report into what torch's iterator expects."""
        made = Made(*values)
        return Opened(made, self.open(made))

    def open(self, made: Made) -> Any:
        """The batch over its slot, or the batch itself if it came without a slot."""
        if made.place is None:
            batch, is_pinned = made.batch, False
        else:
            row, number, length, used = made.place
            memory, is_pinned = self.inbox.open((row, number), length, used)
            batch = read(made.layout, made.pickled, memory)
        return pin_memory(batch) if self._pins and not is_pinned else batch

    def drop(self, made: Made) -> None:
        """Free the slot of a batch that nobody will open. A common slot is freed by the epoch that it belongs to."""
        if made.place is not None and not made.is_part:
            self.inbox.free(made.place[:2])

    def open_common(self, parts: list[Made]) -> Any:
        """The batch that several workers have filled together."""
        places = [part.place for part in parts if part.place is not None]
        row, number, _, used = places[0]
        return self.open(parts[0]._replace(place=(row, number, max(length for _, _, length, _ in places), used)))
