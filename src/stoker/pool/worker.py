"""What happens in a worker process of the loader, whoever gives it work: torch's worker loop, or ours (`serving`).

`begin` comes first. Every batch is put into a slot, and leaves as a `Made`, a message of some hundred bytes about it; the
training process opens the slot.
"""

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

from stoker.host.parent import end_with_parent
from stoker.internals.names import ExceptionWrapper, look_for_parent_every, pin_memory
from stoker.meter import now
from stoker.pool.filling import fill, read
from stoker.pool.maker import count_samples
from stoker.pool.work import NOT_COMMON, Made
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox
from stoker.slots.messages import Plain
from stoker.slots.outbox import Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import collate_into

_NEVER_S = 86400.0
_A_CHILD = "a process that the dataset forked has come back from it: a child must end by os._exit()"


class SlotRoom:
    """The slots of a worker process. Made in the training process, begun once in each worker."""

    outbox: Outbox

    def __init__(self, area: Area, caching: Caching, *, alike_everywhere: bool) -> None:
        self.area = area
        self.caching = caching
        self.alike_everywhere = alike_everywhere
        """Whether workers collate as the training process does; see `leaves`."""

    def begin(self, number: int) -> None:
        """Open the slots of a worker, in its process."""
        self.pid = os.getpid()
        self.outbox = Outbox(self.area, number)
        collate_into(self.outbox, alike_everywhere=self.alike_everywhere)

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Have a batch made in a slot, and announce it. When every slot is kept by somebody, it goes torch's way."""
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
            layout, pickled = fill(batch, outbox)
            number, length, used = outbox.announce()
        finally:
            outbox.abandon()
        place = (self.area.common if joined else outbox.worker, number, length, used)
        ended = now()
        return Made(samples, ended, ended - began, self.caching.take(), False, place, layout, pickled, joined)

    def _whole(self, batch: Any, samples: int, began: float) -> Made:
        ended = now()
        return Made(samples, ended, ended - began, self.caching.take(), batch=batch)


class Beginning:
    """The first thing that a worker process does, in either regime. Travels there."""

    def __init__(self, room: SlotRoom, *, forked: bool) -> None:
        self.room = room
        self.forked = forked

    def __call__(self, number: int) -> Callable[[Any], None] | None:
        """Prepare this process. What is returned wants to know of indices that are ordered."""
        if self.forked:
            leave_inherited()
        if end_with_parent():
            # The watch above replaces torch's look at the parent every few seconds, which would wake an idle worker.
            look_for_parent_every(_NEVER_S)
        self.room.begin(number)
        return self.room.caching.begin()


class SlotCollate:
    """Stands where torch's worker loop calls `collate_fn`."""

    def __init__(self, room: SlotRoom, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self.room = room
        self.collate_fn = collate_fn
        self.batched = batched

    def __call__(self, samples: Any) -> Any:
        """Collate into a slot and announce it."""
        if os.getpid() != self.room.pid:
            raise RuntimeError(_A_CHILD)
        made = self.room.put(lambda: self.collate_fn(samples), count_samples(samples) if self.batched else 1)
        return made if made.place is None else Plain(made)


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


class Opened:
    """A batch in the training process, with what is known of how it was made."""

    __slots__ = ("batch", "made")

    def __init__(self, made: Made, batch: Any) -> None:
        self.made = made
        self.batch = batch

    def pin_memory(self, device: str | None = None) -> "Opened":
        """Copy into page-locked memory, as torch's pinning thread asks every object that can."""
        self.batch = pin_memory(self.batch, device)
        return self


class Opener:
    """Makes batches of what workers have made, over the slots that they lie in."""

    def __init__(self, inbox: Inbox, *, pins: bool) -> None:
        self.inbox = inbox
        self._pins = pins
        """Whether what is not page-locked by its slot is to be copied to where it is."""

    def arrived(self, *values: Any) -> Opened:
        """What torch's iterator gets for a report."""
        made = Made(*values)
        return Opened(made, self.open(made))

    def open(self, made: Made) -> Any:
        """The batch. A slot that others are filling, too, is left closed."""
        if made.place is None:
            return self._pinned(made.batch)
        row, number, length, used = made.place
        return self._open((row, number), length, used, made)

    def open_common(self, parts: list[Made]) -> Any:
        """The batch that several workers have filled together."""
        places = [part.place for part in parts if part.place is not None]
        row, number, _, used = places[0]
        return self._open((row, number), max(length for _, _, length, _ in places), used, parts[0])

    def _open(self, place: tuple[int, int], length: int, used: int, made: Made) -> Any:
        memory, is_pinned = self.inbox.open(place, length, used)
        batch = read(made.layout, made.pickled, memory)
        return batch if is_pinned else self._pinned(batch)

    def _pinned(self, batch: Any) -> Any:
        return pin_memory(batch) if self._pins else batch
