"""Worker processes over lines: work is pushed to the worker that it is ordered for, and batches come back in slots."""

from collections.abc import Callable
from typing import Any

from stoker.memory import Flag
from stoker.plan import HOST
from stoker.pool.crew import Crew, ProcessCrew
from stoker.pool.maker import Room
from stoker.pool.serving import Duty, Exchange, Result, serve
from stoker.pool.work import NOT_COMMON, Made, Work, listed, work_of
from stoker.pool.worker import Beginning, Opener, SlotRoom, are_forked, explain
from stoker.slots.area import Area
from stoker.slots.context import LinedContext
from stoker.slots.inbox import Inbox, Pins
from stoker.slots.lines import WorkerOrders, WorkerReports
from stoker.slots.messages import Plain
from stoker.tensor.caching import Caching
from stoker.tensor.pinned import pins_for


class LoaderSlots:
    """The slots of a loader. They outlive its pools, so that the next pool finds their pages in place."""

    def __init__(self, loader: Any, spares: list[Inbox]) -> None:
        self._spares = spares
        finishing = loader.here.finishing
        self.records = HOST if finishing is None else finishing.where
        """What workers leave to the device."""
        wanted = loader.pin_memory or (finishing is not None and finishing.pins)
        pins = next((spare.pins for spare in spares if spare.pins is not None), None) or pins_for(wanted=wanted)
        self.pins = pins is not None
        self.inbox = _take_spare(spares, loader.num_workers, loader.prefetch_factor, pins)

    def give_back(self) -> None:
        """Take the slots back when all workers have ended."""
        if self._spares:
            self.inbox.close()
        elif self.inbox.is_open:  # a garbage collector that has met both may have closed it first
            self.inbox.renew()
            self._spares.append(self.inbox)


def _take_spare(spares: list[Inbox], workers: int, prefetch: int, pins: Pins | None) -> Inbox:
    while spares:
        inbox = spares.pop()
        fits = (inbox.area.workers, inbox.area.prefetch, inbox.pins is None) == (workers, prefetch, pins is None)
        if inbox.is_ours and inbox.is_open and fits:
            return inbox
        inbox.close()
    return Inbox(Area(workers, prefetch), pins)


class LinePool:
    """Worker processes over lines."""

    helpers = 0

    def __init__(
        self,
        duty: Duty,
        caching: Caching,
        context: Any,
        slots: LoaderSlots,
        *,
        pins: bool,
        serving: "Callable[[Duty, int, SlotRoom], Serving] | None" = None,
    ) -> None:
        serving = serving or Serving
        self._slots = slots
        inbox = slots.inbox
        opener = Opener(inbox, pins=pins)
        self.open, self.open_common = opener.open, opener.open_common
        self.free_common = inbox.free_common
        self.drop = opener.drop
        room = SlotRoom(inbox.area, caching, alike_everywhere=True, records=slots.records)
        beginning = Beginning(room, forked=are_forked(context))
        self._lines = LinedContext(context, duty.workers, beginning, Made, explain, ids_of=_ids_of)
        self._orders: list[Any] = []
        processes: list[Any] = []
        self.crew: Crew = ProcessCrew(processes, self._tell_to_end, caching.damage)
        try:
            with self._lines.starting():
                self._reports = self._lines.Queue()
                self._stop = self._lines.Event()
                for number in range(duty.workers):
                    self._orders.append(self._lines.Queue())
                    own = self._orders[-1], self._reports, self._stop
                    process = self._lines.Process(serving(duty, number, room), own)
                    process.daemon = True
                    processes.append(process)
                    process.start()
        except BaseException:
            processes[:] = [process for process in processes if process.pid is not None]
            self.close()
            raise

    def _tell_to_end(self) -> None:
        if self._orders:
            self._stop.set()
        for orders in self._orders:
            orders.put(None)  # another process that was forked meanwhile may hold this line open
            orders.close()

    def order(self, worker: int, name: int, work: Work) -> None:
        """Send work to a worker, without waiting."""
        self._orders[worker].put((name, work.as_plain() or work))

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. Raises `queue.Empty` after a time, and when a worker has ended."""
        return self._reports.get(timeout_s)  # type: ignore[no-any-return]

    def pid_of(self, name: int, worker: int) -> int:
        """The pid of the process that makes a work, which was ordered from a worker."""
        return self.crew.pid(worker)

    @property
    def draws(self) -> bool:
        """False: nobody beside the crew helps, so nobody looks."""
        return False

    def claim_common(self) -> int:
        """Claim a slot for several workers to fill, or return NOT_COMMON."""
        number = self._slots.inbox.claim_common()
        return NOT_COMMON if number is None else number

    def close(self) -> None:
        """End the crew, and keep the slots: the next epoch's first batches then find their pages in place."""
        self.crew.close()
        self._lines.close()
        self._slots.give_back()


class Serving:
    """What runs in a worker process over lines. It is sent there."""

    def __init__(self, duty: Duty, worker: int, room: SlotRoom) -> None:
        self._duty = duty
        self._worker = worker
        self._room = room

    def __call__(self, orders: WorkerOrders, reports: WorkerReports, stop: Flag) -> None:
        """Work until there is no more."""
        self._duty.become_worker(self._worker)
        where = f"in DataLoader worker process {self._worker}"
        exchange, room = self.exchange(LineExchange(orders, reports, stop))
        serve(self._duty.begin(self._worker, where), where, exchange, room)

    def exchange(self, lines: "LineExchange") -> tuple[Exchange, Room]:
        """Where work comes from, and where batches are put."""
        return lines, self._room


class LineExchange:
    """The worker's end of its lines."""

    def __init__(self, orders: WorkerOrders, reports: WorkerReports, stop: Flag) -> None:
        self.orders, self._reports, self.stop = orders, reports, stop

    def next(self) -> tuple[int, Work] | None:
        """The next work."""
        return self.opened(self.orders.get())

    def opened(self, order: Any) -> tuple[int, Work] | None:
        """The work of an order; None if it says to end."""
        if order is None or self.stop.is_set():
            return None
        name, work = order
        return name, work if type(work) is Work else work_of(work)

    def give_up(self, name: int) -> None:
        """Do nothing: the training process notices that the line has ended."""

    def publish(self, name: int, result: Result) -> None:
        """Report the result. A child that the dataset forked ends here."""
        self._reports.put((name, Plain(result) if type(result) is Made and result.place is not None else result))


def _ids_of(order: Any) -> Any:
    return None if order is None else listed(order[1][_IDS])


_IDS = Work._fields.index("ids")
