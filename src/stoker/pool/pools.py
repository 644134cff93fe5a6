"""Pools: a crew with its exchange, as the iterator sees them that orders work and opens what was made.

Two kinds push work to a worker: processes over lines, with batches in slots; and threads over queues, with batches as they
are. In both, work goes to the worker that it is ordered for.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from stoker.internals.names import pin_memory
from stoker.memory import Flag
from stoker.meter import now
from stoker.pool.crew import Crew, ProcessCrew, ThreadCrew
from stoker.pool.serving import Duty, Result, serve
from stoker.pool.work import NOT_COMMON, Made, Work, listed, work_of
from stoker.pool.worker import Beginning, Opener, SlotRoom, are_forked, explain
from stoker.slots.area import Area
from stoker.slots.context import LinedContext
from stoker.slots.inbox import Inbox, Pins
from stoker.slots.lines import WorkerOrders, WorkerReports
from stoker.slots.messages import Plain
from stoker.slots.outbox import Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import HereCollate
from stoker.tensor.pinned import pins_for
from stoker.tensor.worker_info import shown


class Pool(Protocol):
    """A crew with an exchange."""

    crew: Crew

    def order(self, worker: int, name: int, work: Work) -> None:
        """Have a worker do something. Does not wait."""

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. `queue.Empty` after a time, and when a worker has ended."""

    def open(self, made: Made) -> Any:
        """The batch that was made."""

    def claim_common(self) -> int:
        """A slot for several workers to fill, or NOT_COMMON."""

    def free_common(self, slot: int) -> None:
        """Nobody will open it."""

    def open_common(self, parts: list[Made]) -> Any:
        """The batch that several workers have filled together."""

    def close(self) -> None:
        """End the crew, and give its memory back."""


class LinePool:
    """Worker processes over lines."""

    def __init__(self, duty: Duty, caching: Caching, context: Any, slots: "Slots", *, pins: bool) -> None:
        self._slots = slots
        inbox = slots.inbox
        opener = Opener(inbox, pins=pins)
        self.open, self.open_common = opener.open, opener.open_common
        self.free_common = inbox.free_common
        room = SlotRoom(inbox.area, caching, alike_everywhere=True)
        beginning = Beginning(room, forked=are_forked(context))
        self._lines = LinedContext(context, duty.workers, beginning, Made, explain, ids_of=_ids_of)
        with self._lines.starting():
            self._reports = self._lines.Queue()
            self._stop = self._lines.Event()
            self._orders, processes = [], []
            for number in range(duty.workers):
                self._orders.append(self._lines.Queue())
                own = self._orders[-1], self._reports, self._stop
                process = self._lines.Process(_Serving(duty, number, room), own)
                process.daemon = True
                process.start()
                processes.append(process)
        self.crew: Crew = ProcessCrew(processes, self._tell_to_end, caching.damage)

    def _tell_to_end(self) -> None:
        self._stop.set()
        for orders in self._orders:
            orders.close()  # whose end is the end of work

    def order(self, worker: int, name: int, work: Work) -> None:
        """Have a worker do something. Does not wait."""
        self._orders[worker].put((name, work.as_plain() or work))

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. `queue.Empty` after a time, and when a worker has ended."""
        return self._reports.get(timeout_s)  # type: ignore[no-any-return]

    def claim_common(self) -> int:
        """A slot for several workers to fill, or NOT_COMMON."""
        number = self._slots.inbox.claim_common()
        return NOT_COMMON if number is None else number

    def close(self) -> None:
        """End the crew, and keep the slots for the next epoch, whose first batches then find their pages in place."""
        self.crew.close()
        self._lines.close()
        self._slots.give_back()


class _Serving:
    """What runs in a worker process over lines. Travels there."""

    def __init__(self, duty: Duty, worker: int, room: SlotRoom) -> None:
        self._duty = duty
        self._worker = worker
        self._room = room

    def __call__(self, orders: WorkerOrders, reports: WorkerReports, stop: Flag) -> None:
        self._duty.become_worker(self._worker)
        where = f"in DataLoader worker process {self._worker}"
        serve(self._duty.begin(self._worker, where), where, _LineExchange(orders, reports, stop), self._room)


class _LineExchange:
    """The worker's end of its lines."""

    def __init__(self, orders: WorkerOrders, reports: WorkerReports, stop: Flag) -> None:
        self._orders, self._reports, self._stop = orders, reports, stop

    def next(self) -> tuple[int, Work] | None:
        """The next work."""
        name, work = self._orders.get()
        if self._stop.is_set():
            return None
        return name, work if type(work) is Work else work_of(work)

    def give_up(self, name: int) -> None:
        """The end of the line says it."""

    def publish(self, name: int, result: Result) -> None:
        """Report. A child that the dataset forked ends here."""
        self._reports.put((name, Plain(result) if type(result) is Made and result.place is not None else result))


def _ids_of(order: Any) -> Any:
    return listed(order[1][_IDS])


_IDS = Work._fields.index("ids")


class QueuePool:
    """Worker threads over queues. Batches are handed over as they are."""

    def __init__(self, duty: Duty, caching: Caching, room: "HereRoom") -> None:
        self._duty, self._caching, self._room = duty, caching, room
        self._stopped = threading.Event()
        self._orders: list[queue.SimpleQueue[tuple[int, Work] | None]] = [queue.SimpleQueue() for _ in range(duty.workers)]
        self._results: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
        self.crew: Crew = ThreadCrew(self._work, duty.workers, self._tell_to_end)

    def _tell_to_end(self) -> None:
        self._stopped.set()
        for orders in self._orders:
            orders.put(None)

    def _work(self, worker: int) -> None:
        exchange = _QueueExchange(self._orders[worker], self._results, self._stopped)
        with self._caching.active(), shown(self._duty.info(worker)):
            self._room.begin()
            where = f"in DataLoader worker thread {worker}"
            serve(self._duty.begin(worker, where), where, exchange, self._room)

    def order(self, worker: int, name: int, work: Work) -> None:
        """Have a worker do something. Does not wait."""
        self._orders[worker].put((name, work))

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. `queue.Empty` after a time."""
        return self._results.get(timeout=timeout_s)

    def open(self, made: Made) -> Any:
        """The batch that was made."""
        return made.batch

    def claim_common(self) -> int:
        """Parts of batches are handed over as they are."""
        return NOT_COMMON

    def free_common(self, slot: int) -> None:
        """There is none."""

    def open_common(self, parts: list[Made]) -> Any:
        """There is none."""

    def close(self) -> None:
        """End the crew."""
        self.crew.close()


class _QueueExchange:
    """A worker thread's end of its queues."""

    def __init__(self, orders: Any, results: Any, stopped: threading.Event) -> None:
        self._orders, self._results, self._stopped = orders, results, stopped
        self._process = os.getpid()

    def next(self) -> tuple[int, Work] | None:
        """The next work."""
        given: tuple[int, Work] | None = self._orders.get()
        return None if self._stopped.is_set() else given

    def give_up(self, name: int) -> None:
        """The end of the thread says it."""

    def publish(self, name: int, result: Result) -> None:
        """Hand over. A child that the dataset forked ends here: nobody else is here to be told."""
        if os.getpid() != self._process:
            if not isinstance(result, Made):
                print(result.exc_msg, file=sys.stderr)
            os._exit(1)
        self._results.put((name, result))


class HereRoom:
    """Memory of the training process, for workers that are threads of it, and for batches without a worker."""

    def __init__(self, caching: Caching, here: HereCollate | None, *, pins: bool) -> None:
        self._caching = caching
        self._here = here
        """Has memory that is used again, where torch's `default_collate` collates."""
        self._device = torch.accelerator.current_device_index() if pins else None
        """Whose driver page-locks batches; None if they are not to be page-locked."""

    def begin(self) -> None:
        """In a worker thread."""
        if self._device is not None:
            torch.accelerator.set_device_index(self._device)  # or it would be the first one, in a new thread

    @property
    def outbox(self) -> Outbox | None:
        """This thread's memory."""
        return None if self._here is None else self._here.outbox

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Have a batch made."""
        began = now()
        if self._here is None:
            batch = make()
        else:
            with self._here.claimed():
                batch = make()
        if self._device is not None:
            batch = pin_memory(batch)
        ended = now()
        return Made(samples, ended, ended - began, self._caching.take(), batch=batch)


class Slots:
    """The slots of a loader, which outlive its pools: pages that are there need not be made again."""

    def __init__(self, loader: Any, spares: list[Inbox]) -> None:
        self._spares = spares
        pins = next((spare.pins for spare in spares if spare.pins is not None), None) or pins_for(loader)
        self.pins = pins is not None
        self.inbox = _take_spare(spares, loader.num_workers, loader.prefetch_factor, pins)

    def give_back(self) -> None:
        """All workers have ended."""
        if self._spares:
            self.inbox.close()
        else:
            self.inbox.renew()
            self._spares.append(self.inbox)


def _take_spare(spares: list[Inbox], workers: int, prefetch: int, pins: Pins | None) -> Inbox:
    while spares:
        inbox = spares.pop()
        fits = (inbox.area.workers, inbox.area.prefetch, inbox.pins is None) == (workers, prefetch, pins is None)
        if inbox.is_ours and fits:
            return inbox
        inbox.close()
    return Inbox(Area(workers, prefetch), pins)
