"""Who talks to object stores for a process: threads of its own, or a process beside it.

obstore's threads do not survive a fork, and it hangs in a child whose parent has used it, and then in the parent. So a
process that may fork never uses it: it asks a process of its own, started by `exec` (`getting_process`), and so does a
child of one that had obstore in use. Only the workers of a loader, which have no children, use it themselves.

A getter's orders are begun as they come, 64 at a time, and their answers asked for in any order, by any thread.
"""

import atexit
import json
import multiprocessing
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

from stoker.extras import OBJECTS
from stoker.host import forks
from stoker.host.interpreters import words_and_environment
from stoker.source.pieces import Answer, ListedObject, Outcome, Piece, answer_of

AT_ONCE = 64
HEAD = struct.Struct("<IQ")  # lengths: of what is said, of the content


class GetterLostError(ConnectionError):
    """The process that talks to the store has gone. Another is started when the next piece is asked for."""


class Getter(Protocol):
    """Gets pieces of objects. `begin` does not wait; each order is either finished or dropped."""

    is_lost: bool

    def begin(self, piece: Piece) -> Any:
        """Order a piece."""

    def finish(self, order: Any) -> Answer:
        """Wait for what was ordered."""

    def drop(self, order: Any) -> None:
        """Do not wait for an order, ever."""

    def pages(self, store: str, prefix: str) -> Iterator[list[ListedObject] | Answer]:
        """The pages of a listing, and how it ended."""


class _Order:
    __slots__ = ("answer", "arrived", "piece", "then")

    def __init__(self, piece: Piece, then: Callable[[Answer], None] | None) -> None:
        self.piece: Piece | None = piece
        self.then = then
        self.answer: Answer | None = None
        self.arrived = threading.Event()


class GettingThreads:
    """Threads of this process. They are not waited for at its end: nobody asks for their answers any more."""

    is_lost = False

    def __init__(self) -> None:
        from stoker.source.stores import Stores

        self._stores = Stores()
        self._queue: SimpleQueue[_Order] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._open_orders = 0

    def begin(self, piece: Piece, then: Callable[[Answer], None] | None = None) -> _Order:
        """Order a piece; `then` is called with the answer, in some thread."""
        order = _Order(piece, then)
        with self._lock:
            self._open_orders += 1
            if self._threads < min(self._open_orders, AT_ONCE):
                self._threads += 1
                threading.Thread(target=self._serve, name="stoker objects", daemon=True).start()
        self._queue.put(order)
        return order

    def _serve(self) -> None:
        while True:
            order = self._queue.get()
            piece = order.piece
            if piece is not None:
                try:
                    order.answer = self._stores.get(piece)
                except Exception as error:  # the one who waits must hear of it
                    order.answer = Answer(Outcome.FAILED, str(error))
                if order.then is not None:
                    order.then(order.answer)
            order.arrived.set()
            with self._lock:
                self._open_orders -= 1

    def finish(self, order: _Order) -> Answer:
        """Wait for what was ordered."""
        order.arrived.wait()
        assert order.answer is not None
        return order.answer

    def drop(self, order: _Order) -> None:
        """Do not begin what has not begun."""
        order.piece = None

    def pages(self, store: str, prefix: str) -> Iterator[list[ListedObject] | Answer]:
        """The pages of a listing, and how it ended."""
        return self._stores.pages(store, prefix)


class GettingProcess:
    """A process that this one has started. It ends when this one closes the line between them, or ends itself."""

    def __init__(self) -> None:
        self.is_lost = False
        self._line, theirs = socket.socketpair()
        words, environment = words_and_environment("stoker.source.getting_process")
        try:
            self._process = subprocess.Popen(
                [*words, str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._number = 0
        self._answers: dict[int, deque[Any]] = {}

    def begin(self, piece: Piece) -> int:
        """Order a piece."""
        return self._order(["get", *piece])

    def _order(self, words: list[Any]) -> int:
        with self._sending:
            self._number += 1
            number = self._number
            self._answers[number] = deque()
            said = json.dumps([number, *words]).encode()
            try:
                self._line.sendall(HEAD.pack(len(said), 0) + said)
            except OSError as error:
                raise self._lost() from error
        return number

    def finish(self, order: int) -> Answer:
        """Wait for what was ordered."""
        answer = self._next(order)
        self._answers.pop(order, None)
        return answer  # type: ignore[no-any-return]

    def drop(self, order: int) -> None:
        """Throw its answer away when it comes."""
        self._answers.pop(order, None)

    def pages(self, store: str, prefix: str) -> Iterator[list[ListedObject] | Answer]:
        """The pages of a listing, and how it ended."""
        order = self._order(["list", store, prefix])
        try:
            while not isinstance(page := self._next(order), Answer):
                yield page
            yield page
        finally:
            self.drop(order)

    def _next(self, order: int) -> Any:
        """The next answer to an order. The one who waits takes in what comes, for the others too."""
        answers = self._answers[order]
        while True:
            with self._receiving:
                if answers:
                    return answers.popleft()
                number, answer = self._receive()
                if (waiting := self._answers.get(number)) is not None:
                    waiting.append(answer)

    def _receive(self) -> tuple[int, Any]:
        said_bytes, content_bytes = HEAD.unpack(receive(self._line, HEAD.size) or self._raise_lost())
        said = json.loads(receive(self._line, said_bytes) or self._raise_lost())
        content = receive(self._line, content_bytes) if content_bytes else b""
        return said[0], answer_of(said[1:], self._raise_lost() if content is None else content)

    def _raise_lost(self) -> Any:
        raise self._lost()

    def _lost(self) -> GetterLostError:
        self.is_lost = True
        return GetterLostError(f"the process that talks to object stores for this one (pid {self._process.pid}) has gone")

    def close(self) -> None:
        """End it: it reads the end of the line."""
        self._line.close()
        self._process.wait()

    def leave(self) -> None:
        """In a forked child: the process is its parent's."""
        self._line.close()


def receive(line: socket.socket, length: int) -> bytearray | None:
    """So many bytes; None where the line ends before."""
    content = bytearray(length)
    view = memoryview(content)
    try:
        while view:
            count = line.recv_into(view)
            if not count:
                return None
            view = view[count:]
    except OSError:
        return None
    return content


_lock = threading.Lock()
_getter: GettingThreads | GettingProcess | None = None
_inherited: list[GettingThreads | GettingProcess] = []
_was_in_use = "obstore" in sys.modules


def getter() -> Getter:
    """This process's getter."""
    global _getter
    with _lock:
        if _getter is None or _getter.is_lost:
            OBJECTS.check()
            if _getter is not None:
                _close()
            has_no_children = multiprocessing.current_process().daemon
            _getter = GettingThreads() if has_no_children and not _was_in_use else GettingProcess()
        return _getter


def _close() -> None:
    if isinstance(_getter, GettingProcess):
        _getter.close()


def _after_fork_in_child() -> None:
    """The parent's getter stays the parent's; and with obstore loaded there, it is not to be used here."""
    global _getter, _lock, _was_in_use
    _lock = threading.Lock()
    if isinstance(_getter, GettingProcess):
        _getter.leave()
    if _getter is not None:
        _inherited.append(_getter)  # never collected here: its end is its parent's affair
        _getter = None
    _was_in_use = "obstore" in sys.modules


forks.register(forks.Stage.LOCKS, after_in_child=_after_fork_in_child)
atexit.register(_close)
