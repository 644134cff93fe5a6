"""Messages between the training process and its workers, over one pipe each way and worker.

A `multiprocessing.Queue` is shared by all, guarded by semaphores that stay locked when their holder is killed, and
written by a thread in every process. A line has one writer and one reader, so it needs neither, and costs a fifth:

    training process --  OrderLine 0..N  -->  workers  --  ReportLine 0..N  -->  ReportLines in the training process

The ends that a process does not use are closed in it: a worker's death is the end of its line, noticed at once. Neither
side ever blocks on a full pipe while the other waits for it: the training process keeps what does not fit until the
worker reads on, and a worker that cannot report goes on asking whether it should stop.

The names of the methods are those of a queue, because torch calls them.
"""

import contextlib
import marshal
import os
import pickle
import queue
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

_HEADER = 4
_PLAIN = b"plain:"
"""How a marshalled message begins; a pickle begins otherwise."""
_CHUNK = 1 << 16
_STUCK_LOOK_MS = 200


class Plain(tuple[Any, ...]):
    """A report of nothing but plain values. It is marshalled, not pickled, and handed to `arrive` on the other side."""

    __slots__ = ()


class _Frames:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
        messages, start, end = [], 0, len(data)
        while end - start >= _HEADER:
            stop = start + _HEADER + int.from_bytes(data[start : start + _HEADER], "little")
            if stop > end:
                break
            messages.append(data[start + _HEADER : stop])
            start = stop
        self._rest = data[start:]
        return messages


def _frame(content: bytes) -> bytes:
    return len(content).to_bytes(_HEADER, "little") + content


def _pickle(message: object) -> bytes:
    return bytes(ForkingPickler.dumps(message))


def _marshal(message: Any) -> bytes:
    """For exact lists, tuples and dictionaries of plain values. Raises ValueError for anything else."""
    return _PLAIN + marshal.dumps(message)


def _open(content: bytes) -> Any:
    return marshal.loads(memoryview(content)[len(_PLAIN) :]) if content.startswith(_PLAIN) else pickle.loads(content)


class _Ends:
    """The two ends of a pipe, as far as this process holds them."""

    reader = writer = -1

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)

    def close_reader(self) -> None:
        reader, self.reader = self.reader, -1
        if reader >= 0:
            os.close(reader)

    def close_writer(self) -> None:
        writer, self.writer = self.writer, -1
        if writer >= 0:
            os.close(writer)

    def forget(self, *descriptors: int) -> None:
        """Leave these to somebody else."""
        self.reader = -1 if self.reader in descriptors else self.reader
        self.writer = -1 if self.writer in descriptors else self.writer

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close_reader()
            self.close_writer()


class OrderLine:
    """The training process's end: what worker k shall do next."""

    def __init__(self) -> None:
        self.ends = _Ends()
        self.backlog: deque[bytes] = deque()
        self._lock = threading.Lock()  # the pinning thread may flush while the main thread puts

    def put(self, message: object) -> None:
        """Send, now or as soon as the worker has read enough."""
        try:
            content = _marshal(message)  # indices are plain numbers in nearly all cases
        except ValueError:
            content = _pickle(message)
        self.backlog.append(_frame(content))
        self.flush()

    def flush(self) -> None:
        """Send as much of the backlog as the pipe takes."""
        with self._lock:
            while self.backlog and self.ends.writer >= 0:
                frame = self.backlog.popleft()
                try:
                    sent = os.write(self.ends.writer, frame)
                except BlockingIOError:
                    sent = 0
                except BrokenPipeError:
                    self.backlog.clear()  # the worker is gone, which its report line tells
                    return
                if sent < len(frame):
                    self.backlog.appendleft(frame[sent:])
                    return

    def close(self) -> None:
        """Send nothing more. What is not sent is dropped."""
        self.backlog.clear()
        with self._lock:
            self.ends.close_writer()

    def cancel_join_thread(self) -> None:
        """A queue's method; there is no thread here."""


class _WorkerOrders:
    """The worker's end of an OrderLine."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        self._frames = _Frames()
        self._messages: deque[bytes] = deque()

    def get(self, timeout: float) -> Any:
        """The next order."""
        while not self._messages:
            if not self._poll.poll(timeout * 1000):
                raise queue.Empty
            data = os.read(self._reader, _CHUNK)
            if not data:
                raise SystemExit  # nobody is left who could order anything
            self._messages.extend(self._frames.feed(data))
        return _open(self._messages.popleft())


class _WorkerReports:
    """The worker's end of a ReportLine."""

    def __init__(self, writer: int, stop: Any) -> None:
        self._writer = writer
        self._stop = stop
        self._poll = select.poll()
        self._poll.register(writer, select.POLLOUT)

    def put(self, message: tuple[Any, Any]) -> None:
        """Report. Dropped when the training process does not listen any more."""
        number, content = message
        frame = memoryview(_frame(_marshal((number, *content)) if type(content) is Plain else _pickle(message)))
        while frame:
            try:
                frame = frame[os.write(self._writer, frame) :]
            except BlockingIOError:
                if not self._poll.poll(_STUCK_LOOK_MS) and self._stop.is_set():
                    return
            except BrokenPipeError:
                return

    def close(self) -> None:
        """A queue's method; the line ends with the process."""

    def cancel_join_thread(self) -> None:
        """A queue's method; there is no thread here."""


class ReportLines:
    """The training process's end of all report lines."""

    _wake = -1

    def __init__(self, orders: list[OrderLine], workers: int, arrive: Callable[..., Any]) -> None:
        self._arrive = arrive
        self.lines: list[_Ends] = []
        for _ in range(workers):
            self.lines.append(_Ends())
        self._orders = orders
        self._frames = {line.reader: _Frames() for line in self.lines}
        self._messages: deque[bytes] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for descriptor in [*self._frames, self._wake]:
            self._poll.register(descriptor, select.POLLIN)

    def get(self, timeout: float | None = None) -> Any:
        """The next report. `queue.Empty` after `timeout` seconds, and at once when a worker has hung up."""
        while not self._messages:
            for order in self._orders:
                if order.backlog:
                    order.flush()
                    if order.backlog:
                        self._poll.register(order.ends.writer, select.POLLOUT)
            events = self._poll.poll(None if timeout is None else timeout * 1000)
            if not events:
                raise queue.Empty
            if self._receive(events) and not self._messages:
                raise queue.Empty
        message = self._messages.popleft()
        if not message.startswith(_PLAIN):
            return pickle.loads(message)
        number, *values = _open(message)
        return number, self._arrive(*values)

    def _receive(self, events: list[tuple[int, int]]) -> bool:
        hung_up = False
        for descriptor, event in events:
            frames = self._frames.get(descriptor)
            if descriptor == self._wake:
                os.eventfd_read(descriptor)
            elif frames is None:
                self._poll.unregister(descriptor)  # an order line has room again
            elif event & select.POLLIN:
                self._messages.extend(frames.feed(os.read(descriptor, _CHUNK)))
            else:
                self._poll.unregister(descriptor)
                hung_up = True
        return hung_up

    def put(self, message: object) -> None:
        """Hand a message to whoever waits in `get`, from within this process."""
        self._messages.append(_pickle(message))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Listen no more."""
        for line in self.lines:
            line.close_reader()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def cancel_join_thread(self) -> None:
        """A queue's method; there is no thread here."""

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()


class LinedContext:
    """A multiprocessing context whose queues are lines, and whose processes call `begin(k)` before their target.

    Plain reports become what `arrive(*values)` returns.

    It makes what torch's iterator asks for, in the order in which it asks: the queue of results, the event that stops
    all, then a queue and a process for each worker.
    """

    def __init__(self, context: Any, workers: int, begin: Callable[[int], None], arrive: Callable[..., Any]) -> None:
        self._context = context
        self._begin = begin
        self._orders: list[OrderLine] = []
        self._reports = ReportLines(self._orders, workers, arrive)
        self._asked_for_reports = False
        self._stop: Any = None
        self._started = 0
        self._interruptible = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Start workers within this. Ctrl-C waits until all run, so that none is interrupted while it cannot handle it."""
        if self._interruptible:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
            self._leave_to_workers()
        finally:
            if self._interruptible:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def Queue(self) -> Any:  # noqa: N802
        """The lines of results at the first call, then one line of orders for each worker."""
        if not self._asked_for_reports:
            self._asked_for_reports = True
            return self._reports
        self._orders.append(OrderLine())
        return self._orders[-1]

    def Event(self) -> Any:  # noqa: N802
        """The event that stops all workers."""
        self._stop = self._context.Event()
        return self._stop

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """The next worker."""
        worker, self._started = self._started, self._started + 1
        own_orders, own_reports = self._orders[worker].ends, self._reports.lines[worker]
        others = [*(order.ends for order in self._orders), *self._reports.lines]
        start = _Start(self._begin, worker, self._stop, own_orders.reader, own_reports.writer, others, self._interruptible)
        stand_ins = {id(self._orders[worker]): _Own.ORDERS, id(self._reports): _Own.REPORTS}
        return self._context.Process(
            target=start, args=(target, *(stand_ins.get(id(argument), argument) for argument in args))
        )

    def _leave_to_workers(self) -> None:
        """Close the workers' ends in the training process, so that a line ends with its worker."""
        for order in self._orders:
            order.ends.close_reader()
        for line in self._reports.lines:
            line.close_writer()

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
    """The first thing that runs in a worker: it keeps its own ends, closes all others, and goes on to the target.

    A forked worker inherits all ends; to a spawned one only its own are sent.
    """

    def __init__(
        self,
        begin: Callable[[int], None],
        worker: int,
        stop: Any,
        reader: Any,
        writer: Any,
        others: list[_Ends],
        interruptible: bool,
    ) -> None:
        self.begin = begin
        self.worker = worker
        self.stop = stop
        self.reader = reader
        self.writer = writer
        self.others = others
        self.interruptible = interruptible

    def __reduce__(self) -> tuple[Any, ...]:
        ends = DupFd(self.reader), DupFd(self.writer)
        return _Start, (self.begin, self.worker, self.stop, *ends, [], self.interruptible)

    def __call__(self, target: Callable[..., None], *args: Any) -> None:
        reader, writer = (end if isinstance(end, int) else end.detach() for end in (self.reader, self.writer))
        for ends in self.others:
            ends.forget(reader, writer)
            ends.close_reader()
            ends.close_writer()
        own = {_Own.ORDERS: _WorkerOrders(reader), _Own.REPORTS: _WorkerReports(writer, self.stop)}
        try:
            if self.interruptible:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self.begin(self.worker)
            target(*(own[argument] if isinstance(argument, _Own) else argument for argument in args))
        except KeyboardInterrupt:
            pass  # the training process has it too, and says so
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
