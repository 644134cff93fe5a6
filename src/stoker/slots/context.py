"""A multiprocessing context whose queues are lines. By it torch's iterator uses lines, and workers are started."""

import contextlib
import multiprocessing.forkserver
import signal
from collections.abc import Callable, Iterator
from enum import Enum
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

from stoker.memory import Flag
from stoker.slots.lines import LineEnds, OrderLine, ReportLines, WorkerOrders, WorkerReports


class Begin(Protocol):
    """Prepares a worker process."""

    def __call__(self, worker: int, reports: WorkerReports, /) -> Callable[[Any], None] | None:
        """Prepare it, by its number and its line. What this returns is told of indices as soon as they are ordered."""

    def sent_to(self, worker: int, /) -> "Begin":
        """What is sent to a worker that inherits nothing."""


def ids_of_torch(order: Any) -> Any:
    """The indices in an order of torch's iterator; None for its other messages."""
    return order[1] if type(order) is tuple and len(order) == 2 else None


def _is_interruptible() -> bool:
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back within this, so that no worker is interrupted before it can handle that."""
    if not _is_interruptible():
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class LinedContext:
    """A multiprocessing context whose queues are lines, and whose processes call `begin(k, reports)` before their target.

    torch's iterator asks it for these, in this order: the queue of results, the event that stops all workers, then a queue
    and a process for each worker. Plain reports become what `arrive(*values)` returns. If a report cannot be pickled,
    `explain(error, report)` is sent instead. A worker gets `hand_out(order)` in place of each order.
    """

    def __init__(
        self,
        context: Any,
        workers: int,
        begin: Begin,
        arrive: Callable[..., Any],
        explain: Callable[[Exception, Any], Any],
        ids_of: Callable[[Any], Any] = ids_of_torch,
        hand_out: Callable[[Any], Any] | None = None,
    ) -> None:
        self._context = context
        self._workers = workers
        self._begin = begin
        self._ids_of, self._hand_out = ids_of, hand_out
        self._explain = explain
        self._reports = ReportLines(workers, arrive)
        self._orders = self._reports.orders
        self._asked_for_reports = False
        self._stop: Any = None
        self._interruptible = _is_interruptible()
        self._held = False

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Start workers within this. Ctrl-C waits until all run, so that none is interrupted before it can handle that."""
        if self._context.get_start_method() == "forkserver":
            multiprocessing.forkserver.ensure_running()  # it would hold back Ctrl-C for ever, and in all its children
        try:
            if self._interruptible:
                self._held = True
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            yield
        finally:
            self._all_started()

    def _all_started(self) -> None:
        """Close the workers' ends in the training process, so that a line ends with its worker; let Ctrl-C through."""
        for order in self._orders:
            order.ends.close_reader()
        for line in self._reports.lines:
            line.close_writer()
        if self._held:
            self._held = False
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def Queue(self) -> Any:  # noqa: N802
        """The lines of results at the first call, then one line of orders for each worker."""
        if not self._asked_for_reports:
            self._asked_for_reports = True
            return self._reports
        self._orders.append(OrderLine(self._reports.wake))
        return self._orders[-1]

    def Event(self) -> Any:  # noqa: N802
        """The event that stops all workers. A worker that is killed cannot leave it locked."""
        self._stop = Flag()
        return self._stop

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """The process of the next worker."""
        worker = len(self._reports.processes)
        own_orders, own_reports = self._orders[worker].ends, self._reports.lines[worker]
        start = _Start(
            self._begin,
            worker,
            (self._stop, self._explain, self._interruptible, self._ids_of, self._hand_out),
            (own_orders.reader, own_reports.writer),
            [*(order.ends for order in self._orders), *self._reports.lines],
        )
        stand_ins = {id(self._orders[worker]): _Own.ORDERS, id(self._reports): _Own.REPORTS}
        process = self._context.Process(
            target=start, args=(target, *(stand_ins.get(id(argument), argument) for argument in args))
        )
        self._reports.processes.append(process)
        if worker == self._workers - 1:
            process.start = lambda: self._start_last(process)
        return process

    def _start_last(self, process: Any) -> None:
        # torch's iterator calls the user's sampler next, which may be interrupted.
        del process.start
        process.start()
        self._all_started()

    def close(self) -> None:
        """Close the training process's ends."""
        for order in self._orders:
            order.close()
        self._reports.close()


class _Own(Enum):
    """Stand-ins for a worker's own lines among the arguments of its target."""

    ORDERS = "orders"
    REPORTS = "reports"


class _Start:
    """The first thing that runs in a worker: it keeps its own ends, closes all others, and calls the target.

    A forked worker inherits all ends. A spawned worker gets only its own.
    """

    def __init__(
        self,
        begin: Begin,
        worker: int,
        rules: tuple[Any, Callable[[Exception, Any], Any], bool, Callable[[Any], Any], Callable[[Any], Any] | None],
        own: tuple[Any, Any],
        others: list[LineEnds],
    ) -> None:
        self.begin = begin
        self.worker = worker
        self.rules = rules
        self.own = own
        self.others = others

    def __reduce__(self) -> tuple[Any, ...]:
        return _Start, (self.begin.sent_to(self.worker), self.worker, self.rules, tuple(map(DupFd, self.own)), [])

    def __call__(self, target: Callable[..., None], *args: Any) -> None:
        reader, writer = (end if isinstance(end, int) else end.detach() for end in self.own)
        for ends in self.others:
            ends.forget(reader, writer)
            ends.close_reader()
            ends.close_writer()
        stop, explain, interruptible, ids_of, hand_out = self.rules
        orders = WorkerOrders(reader, ids_of, hand_out)
        reports = WorkerReports(writer, stop, explain)
        own = {_Own.ORDERS: orders, _Own.REPORTS: reports}
        try:
            if interruptible:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            orders.foresee = self.begin(self.worker, reports)
            target(*(own[argument] if isinstance(argument, _Own) else argument for argument in args))
        except KeyboardInterrupt:
            pass  # the training process is interrupted too, and reports it
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
