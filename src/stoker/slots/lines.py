"""Messages between the training process and its workers, over two lines per worker, one for each direction.

A `multiprocessing.Queue` is shared by all, guarded by semaphores that stay locked when their holder is killed, and
written by a thread in every process. A line has one writer and one reader, so it needs neither, and costs a fifth:

    training process --  OrderLine 0..N  -->  workers  --  ReportLine 0..N  -->  ReportLines in the training process

Each process closes the ends that it does not use, so a worker's death ends its line and is noticed at once. Neither side
ever blocks on a full line while the other waits for it: the training process keeps what does not fit until the worker
reads on, and a worker that cannot report keeps asking whether it should stop.

The names of the methods are those of a queue, because torch calls them.
"""

import contextlib
import os
import pickle
import queue
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from stoker.slots.messages import MARSHALLED, Frames, Plain, framed, is_plain, marshalled, opened, pickled

_CHUNK = 1 << 16
_ROOM = 1 << 20
_QUIETLY = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_STUCK_LOOK_MS = 200
_ENDING_S = 5.0


class LineEnds:
    """The two ends of a line, as far as this process holds them.

    A line is a pair of sockets. Writing to a pipe without a reader would raise SIGPIPE, which ends programs that enable it.
    """

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self.reader, self.writer = self._reading.fileno(), self._writing.fileno()

    def send(self, data: Any) -> int:
        """Write as many bytes as fit. Returns how many."""
        return self._writing.send(data, _QUIETLY)

    def close_reader(self) -> None:
        """Close the end that reads."""
        self.reader = -1
        self._reading.close()

    def close_writer(self) -> None:
        """Close the end that writes."""
        self.writer = -1
        self._writing.close()

    def forget(self, *descriptors: int) -> None:
        """Forget some of these ends without closing them: other code closes them."""
        for end in (self._reading, self._writing):
            if end.fileno() in descriptors:
                end.detach()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and hasattr(self, "_writing"):  # the line may not have been made: no descriptors were left
            self.close_reader()
            self.close_writer()


class OrderLine:
    """The training process's end of the line that carries orders to one worker."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.ends = LineEnds()
        self.backlog: deque[bytes] = deque()
        self._wake = wake
        self._lock = threading.Lock()  # the pinning thread may flush while the main thread puts

    def put(self, message: Any) -> None:
        """Send an order, now or as soon as the worker has read enough."""
        if type(message) is tuple and type(message[1]) is Plain:
            content = marshalled((message[0], tuple(message[1])))
        else:
            content = marshalled(message) if is_plain(message) else pickled(message)
        self.send(content)

    def send(self, content: bytes) -> None:
        """Send an order that is marshalled already."""
        self.backlog.append(framed(content))
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
                    self.backlog.clear()  # the worker is gone: its report line tells that
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
        """Do nothing. torch calls this method of queues; there is no thread here."""


class WorkerOrders:
    """The worker's end of an OrderLine."""

    def __init__(self, reader: int, ids_of: Callable[[Any], Any], hand_out: Callable[[Any], Any] | None = None) -> None:
        self._reader = reader
        self._hand_out = hand_out
        self._ids_of = ids_of
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        self._frames = Frames()
        self._orders: deque[Any] = deque()
        self.foresee: Callable[[Any], None] | None = None
        """Called with the indices of orders as soon as these arrive, even while earlier orders wait."""

    def get(self, timeout: float | None = None) -> Any:
        """The next order."""
        while not self._orders:
            if not self._poll.poll(None if timeout is None else timeout * 1000):
                raise queue.Empty
            self._receive()
        if self.foresee is not None and self._poll.poll(0):
            self._receive()
        order = self._orders.popleft()
        return order if self._hand_out is None else self._hand_out(order)

    def _receive(self) -> None:
        data = os.read(self._reader, _CHUNK)
        if not data:
            if self._orders:
                return
            raise SystemExit  # nobody is left who could order anything
        for message in self._frames.feed(data):
            order = opened(message)
            self._orders.append(order)
            if self.foresee is not None:
                self.foresee(self._ids_of(order))


class WorkerReports:
    """The worker's end of a ReportLine."""

    def __init__(self, writer: int, stop: Any, explain: Callable[[Exception, Any], Any]) -> None:
        self._writing = socket.socket(fileno=writer)
        self._owner = os.getpid()
        self._stop = stop
        self._explain = explain
        self._poll = select.poll()
        self._poll.register(writer, select.POLLOUT)

    def put(self, message: tuple[Any, Any]) -> None:
        """Send a report. It is dropped if the training process does not listen. A child that a worker forked ends here."""
        try:
            self._send(message)
        finally:
            if os.getpid() != self._owner:
                os._exit(1)

    def _send(self, message: tuple[Any, Any]) -> None:
        frame = memoryview(framed(self._write(*message)))
        while frame:
            try:
                frame = frame[self._writing.send(frame, _QUIETLY) :]
            except BlockingIOError:
                if not self._poll.poll(_STUCK_LOOK_MS) and self._stop.is_set():
                    return
            except (BrokenPipeError, ConnectionResetError):
                return

    def hang_up(self) -> None:
        """Close this end of the line."""
        self._writing.close()

    def _write(self, number: Any, content: Any) -> bytes:
        if type(content) is Plain:
            return marshalled((number, *content))
        try:
            return pickled((number, content))
        except Exception as error:  # the user's object may raise anything
            return pickled((number, self._explain(error, content)))

    def close(self) -> None:
        """Do nothing. torch calls this method of queues; the line ends with the process."""

    def cancel_join_thread(self) -> None:
        """Do nothing. torch calls this method of queues; there is no thread here."""


class ReportLines:
    """The training process's end of all report lines."""

    _wake = -1

    def __init__(self, workers: int, arrive: Callable[..., Any]) -> None:
        self.orders: list[OrderLine] = []
        self.processes: list[Any] = []
        self.lines: list[LineEnds] = []
        for _ in range(workers):
            self.lines.append(LineEnds())
        self._arrive = arrive
        self._frames = {line.reader: Frames() for line in self.lines}
        self._messages: deque[Any] = deque()
        """Messages as they came, and reports that other descriptors gave."""
        self._others: dict[int, Callable[[], list[Any]]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        for descriptor in [*self._frames, self._wake]:
            self._poll.register(descriptor, select.POLLIN)

    def get(self, timeout: float | None = None) -> Any:
        """The next report. Raises `queue.Empty` after `timeout` seconds, and at once when a worker's line has ended."""
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
        if type(message) is not bytes:
            return message
        if not message.startswith(MARSHALLED):
            return pickle.loads(message)
        number, *values = opened(message)
        return number, self._arrive(*values)

    def watch(self, descriptor: int, receive: Callable[[], list[Any]]) -> None:
        """Also wait for a descriptor. When it can be read, `receive` is called, and returns reports, if any."""
        self._others[descriptor] = receive
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, descriptor: int) -> None:
        """Undo `watch`, before the descriptor is closed."""
        if self._others.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _receive(self, events: list[tuple[int, int]]) -> bool:
        hung_up = False
        for descriptor, event in events:
            frames = self._frames.get(descriptor)
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(descriptor)
            elif descriptor in self._others:
                self._messages.extend(self._others[descriptor]())
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
        """Wait for a worker whose line has ended, so that its exit code is known to the caller."""
        for line, process in zip(self.lines, self.processes, strict=False):
            if line.reader == descriptor:
                process.join(_ENDING_S)

    def wake(self) -> None:
        """Make a thread that waits in `get` look again."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def put(self, message: object) -> None:
        """Hand a message to a thread of this process that waits in `get`."""
        self._messages.append(pickled(message))
        self.wake()

    def close(self) -> None:
        """Close all report lines."""
        for line in self.lines:
            line.close_reader()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def cancel_join_thread(self) -> None:
        """Do nothing. torch calls this method of queues; there is no thread here."""

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()
