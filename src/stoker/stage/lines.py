"""Messages between the training process and its workers, over one line each way and worker.

A `multiprocessing.Queue` is shared by all, guarded by semaphores that stay locked when their holder is killed, and
written by a thread in every process. A line has one writer and one reader, so it needs neither, and costs a fifth:

    training process --  OrderLine 0..N  -->  workers  --  ReportLine 0..N  -->  ReportLines in the training process

The ends that a process does not use are closed in it: a worker's death is the end of its line, noticed at once. Neither
side ever blocks on a full line while the other waits for it: the training process keeps what does not fit until the
worker reads on, and a worker that cannot report goes on asking whether it should stop.

The names of the methods are those of a queue, because torch calls them.
"""

import contextlib
import marshal
import multiprocessing.forkserver
import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from multiprocessing.reduction import DupFd, ForkingPickler
from time import monotonic
from typing import Any

_HEADER = 4
_MARSHALLED = b"plain:"
"""How a marshalled message begins; a pickle begins otherwise."""
_CHUNK = 1 << 18
_ROOM = 1 << 20
_QUIETLY = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_STUCK_LOOK_MS = 200
_ENDING_S = 5.0

_PLAIN = frozenset({int, str, float, bool, type(None)})


class Plain(tuple[Any, ...]):
    """An order or report of nothing but plain values: it is marshalled. A report is handed to `arrive` where it comes."""

    __slots__ = ()


def is_plain(value: Any) -> bool:
    """Whether marshal gives back the same: exact plain types. (It turns whatever has a buffer into bytes, silently.)"""
    kind = type(value)
    if kind is list or kind is tuple:
        return set(map(type, value)) <= _PLAIN or all(map(is_plain, value))
    return kind in _PLAIN


def _pickle(message: object) -> bytes:
    return bytes(ForkingPickler.dumps(message))


def _marshal(message: Any) -> bytes:
    return _MARSHALLED + marshal.dumps(message)


def _open(content: bytes) -> Any:
    if content.startswith(_MARSHALLED):
        return marshal.loads(memoryview(content)[len(_MARSHALLED) :])
    return pickle.loads(content)


def _frame(content: bytes) -> bytes:
    return len(content).to_bytes(_HEADER, "little") + content


class _Frames:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_missing", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> list[bytes]:
        self._missing -= len(data)
        if self._parts or self._missing > 0:
            self._parts.append(data)
            if self._missing > 0:
                return []  # a long message: it is put together once, when all of it is there
            data = b"".join(self._parts)
            self._parts = []
        messages, start, end = [], 0, len(data)
        self._missing = 0
        while start < end:
            body = start + _HEADER
            stop = body + int.from_bytes(data[start:body], "little") if body <= end else body
            if stop > end or body > end:
                self._parts = [data[start:]]
                self._missing = stop - end
                break
            messages.append(data[body:stop])
            start = stop
        return messages


class _Ends:
    """The two ends of a line, as far as this process holds them.

    It is a pair of sockets, because writing to a pipe whose reader is gone would end a program that wants SIGPIPE to.
    """

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self.reader, self.writer = self._reading.fileno(), self._writing.fileno()

    def send(self, data: Any) -> int:
        """Write what fits."""
        return self._writing.send(data, _QUIETLY)

    def close_reader(self) -> None:
        self.reader = -1
        self._reading.close()

    def close_writer(self) -> None:
        self.writer = -1
        self._writing.close()

    def forget(self, *descriptors: int) -> None:
        """Leave these to somebody else."""
        for end in (self._reading, self._writing):
            if end.fileno() in descriptors:
                end.detach()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and hasattr(self, "_writing"):  # there may have been no descriptors left
            self.close_reader()
            self.close_writer()


class OrderLine:
    """The training process's end: what worker k shall do next."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.ends = _Ends()
        self.backlog: deque[bytes] = deque()
        self._wake = wake
        self._lock = threading.Lock()  # the pinning thread may flush while the main thread puts

    def put(self, message: Any) -> None:
        """Send, now or as soon as the worker has read enough."""
        if type(message) is tuple and type(message[1]) is Plain:
            content = _marshal((message[0], tuple(message[1])))
        else:
            content = _marshal(message) if is_plain(message) else _pickle(message)
        self.backlog.append(_frame(content))
        self.flush()
        if self.backlog:
            self._wake()

    def flush(self) -> None:
        """Send as much of the backlog as the line takes."""
        with self._lock:
            while self.backlog and self.ends.writer >= 0:
                frame = self.backlog.popleft()
                try:
                    sent = self.ends.send(frame)
                except BlockingIOError:
                    sent = 0
                except (BrokenPipeError, ConnectionResetError):
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

    def __init__(self, writer: int, stop: Any, explain: Callable[[Exception, Any], Any]) -> None:
        self._writing = socket.socket(fileno=writer)
        self._stop = stop
        self._explain = explain
        self._poll = select.poll()
        self._poll.register(writer, select.POLLOUT)

    def put(self, message: tuple[Any, Any]) -> None:
        """Report. Dropped when the training process does not listen any more."""
        frame = memoryview(_frame(self._write(*message)))
        while frame:
            try:
                frame = frame[self._writing.send(frame, _QUIETLY) :]
            except BlockingIOError:
                if not self._poll.poll(_STUCK_LOOK_MS) and self._stop.is_set():
                    return
            except (BrokenPipeError, ConnectionResetError):
                return

    def _write(self, number: Any, content: Any) -> bytes:
        if type(content) is Plain:
            return _marshal((number, *content))
        try:
            return _pickle((number, content))
        except Exception as error:  # whatever the user's object raised
            return _pickle((number, self._explain(error, content)))

    def close(self) -> None:
        """A queue's method; the line ends with the process."""

    def cancel_join_thread(self) -> None:
        """A queue's method; there is no thread here."""


class ReportLines:
    """The training process's end of all report lines."""

    _wake = -1

    def __init__(self, workers: int, arrive: Callable[..., Any]) -> None:
        self.orders: list[OrderLine] = []
        self.processes: list[Any] = []
        self.lines: list[_Ends] = []
        for _ in range(workers):
            self.lines.append(_Ends())
        self._arrive = arrive
        self._frames = {line.reader: _Frames() for line in self.lines}
        self._messages: deque[bytes] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for descriptor in [*self._frames, self._wake]:
            self._poll.register(descriptor, select.POLLIN)

    def get(self, timeout: float | None = None) -> Any:
        """The next report. `queue.Empty` after `timeout` seconds, and at once when a worker has hung up."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._messages:
            for order in self.orders:
                if order.backlog:
                    order.flush()
                    if order.backlog and order.ends.writer >= 0:
                        self._poll.register(order.ends.writer, select.POLLOUT)
            events = self._poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
            if not events or (self._receive(events) and not self._messages):
                raise queue.Empty
        message = self._messages.popleft()
        if not message.startswith(_MARSHALLED):
            return pickle.loads(message)
        number, *values = _open(message)
        return number, self._arrive(*values)

    def _receive(self, events: list[tuple[int, int]]) -> bool:
        hung_up = False
        for descriptor, event in events:
            frames = self._frames.get(descriptor)
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(descriptor)
            elif frames is None:
                self._poll.unregister(descriptor)  # an order line has room again
            else:
                data = os.read(descriptor, _CHUNK) if event & select.POLLIN else b""
                if data:
                    self._messages.extend(frames.feed(data))
                else:
                    self._poll.unregister(descriptor)
                    self._await_end(descriptor)
                    hung_up = True
        return hung_up

    def _await_end(self, descriptor: int) -> None:
        """A worker that has hung up is about to end: whoever asks how it did shall get an answer."""
        for line, process in zip(self.lines, self.processes, strict=False):
            if line.reader == descriptor:
                process.join(_ENDING_S)

    def wake(self) -> None:
        """Make whoever waits in `get` look again."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def put(self, message: object) -> None:
        """Hand a message to whoever waits in `get`, from within this process."""
        self._messages.append(_pickle(message))
        self.wake()

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

    It makes what torch's iterator asks for, in the order in which it asks: the queue of results, the event that stops
    all, then a queue and a process for each worker. Plain reports become what `arrive(*values)` returns; for a report
    that cannot be pickled, `explain(error, report)` is sent.
    """

    def __init__(
        self,
        context: Any,
        workers: int,
        begin: Callable[[int], None],
        arrive: Callable[..., Any],
        explain: Callable[[Exception, Any], Any],
    ) -> None:
        self._context = context
        self._workers = workers
        self._begin = begin
        self._explain = explain
        self._reports = ReportLines(workers, arrive)
        self._orders = self._reports.orders
        self._asked_for_reports = False
        self._stop: Any = None
        self._interruptible = signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._held = False

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Start workers within this. Ctrl-C waits until all run, so that none is interrupted while it cannot handle it."""
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
        """The event that stops all workers."""
        self._stop = self._context.Event()
        return self._stop

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """The next worker."""
        worker = len(self._reports.processes)
        own_orders, own_reports = self._orders[worker].ends, self._reports.lines[worker]
        start = _Start(
            self._begin,
            worker,
            (self._stop, self._explain, self._interruptible),
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
        # What follows in torch's iterator is the user's sampler, which may be interrupted.
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
    """The first thing that runs in a worker: it keeps its own ends, closes all others, and goes on to the target.

    A forked worker inherits all ends; to a spawned one only its own are sent.
    """

    def __init__(
        self,
        begin: Callable[[int], None],
        worker: int,
        rules: tuple[Any, Callable[[Exception, Any], Any], bool],
        own: tuple[Any, Any],
        others: list[_Ends],
    ) -> None:
        self.begin = begin
        self.worker = worker
        self.rules = rules
        self.own = own
        self.others = others

    def __reduce__(self) -> tuple[Any, ...]:
        return _Start, (self.begin, self.worker, self.rules, tuple(map(DupFd, self.own)), [])

    def __call__(self, target: Callable[..., None], *args: Any) -> None:
        reader, writer = (end if isinstance(end, int) else end.detach() for end in self.own)
        for ends in self.others:
            ends.forget(reader, writer)
            ends.close_reader()
            ends.close_writer()
        stop, explain, interruptible = self.rules
        own = {_Own.ORDERS: _WorkerOrders(reader), _Own.REPORTS: _WorkerReports(writer, stop, explain)}
        try:
            if interruptible:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self.begin(self.worker)
            target(*(own[argument] if isinstance(argument, _Own) else argument for argument in args))
        except KeyboardInterrupt:
            pass  # the training process has it too, and says so
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
