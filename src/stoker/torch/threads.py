"""Workers that are threads of the training process.

They start at once, share the dataset, and need no pickling. They help where the user's code releases the interpreter lock,
as decoders do, and everywhere on a Python without it. torch's iterator drives them as it drives processes: this is a
multiprocessing context whose processes are threads.

The default generators of Python, NumPy and torch belong to the whole process, so they cannot be set for a sample here.
A dataset that wants randomness takes the `rng` that it is given.
"""

import atexit
import contextlib
import os
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from stoker.internals.names import (
    DatasetKind,
    ExceptionWrapper,
    ResumeIteration,
    StreamEnded,
    WorkerCall,
    WorkerInfo,
    read_call,
)
from stoker.torch.worker_info import shown

_END_S = 5.0


class _Line(queue.SimpleQueue[Any]):
    """A queue with the methods of one between processes."""

    def close(self) -> None:
        """Nothing to close."""

    def cancel_join_thread(self) -> None:
        """There is no thread to join."""


_working: "weakref.WeakKeyDictionary[threading.Thread, Callable[[], object]]" = weakref.WeakKeyDictionary()


def end_at_exit(thread: threading.Thread, stop: Callable[[], object]) -> None:
    """Have a worker told to stop, and waited for, before the interpreter ends.

    Python ends threads that are left over wherever they are, and within torch's own code that aborts the process.
    """
    _working[thread] = stop


@atexit.register
def _end_all() -> None:
    working = [(thread, stop) for thread, stop in _working.items() if thread.is_alive()]
    for _, stop in working:
        stop()
    deadline = time.monotonic() + _END_S
    for thread, _ in working:
        thread.join(max(0.0, deadline - time.monotonic()))


class _ThreadWorker:
    """A thread that looks like a process to torch."""

    exitcode: int | None = None

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...],
        around: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        call = read_call(target, args)

        def work() -> None:
            with around(), shown(_info(call)):
                _work(call)

        self.pid = os.getpid()
        self._thread = threading.Thread(target=work, name=f"stoker-worker-{call.worker_id}", daemon=True)

        def stop() -> None:
            call.done_event.set()
            call.index_queue.put(None)

        self._stop = stop

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        end_at_exit(self._thread, self._stop)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def terminate(self) -> None:
        """A thread cannot be ended from outside; it ends after the sample that it is busy with."""


class ThreadContext:
    """A multiprocessing context of threads, each of which works within `around()`."""

    def __init__(self, around: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._around = around

    def Queue(self) -> _Line:  # noqa: N802
        """A queue."""
        return _Line()

    def Event(self) -> threading.Event:  # noqa: N802
        """An event."""
        return threading.Event()

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> _ThreadWorker:  # noqa: N802
        """A worker."""
        return _ThreadWorker(target, args, self._around)


def _info(call: WorkerCall) -> WorkerInfo:
    worker = call.worker_id
    return WorkerInfo(id=worker, num_workers=call.num_workers, seed=call.base_seed + worker, dataset=call.dataset)


def _work(call: WorkerCall) -> None:
    """What torch's worker loop does, less what concerns a process of its own."""
    worker, orders, results, stop = call.worker_id, call.index_queue, call.data_queue, call.done_event
    where = f"in DataLoader worker thread {worker}"
    fetcher_options = (call.dataset_kind, call.dataset, call.auto_collation, call.collate_fn, call.drop_last)
    process = os.getpid()
    failure: Any = None
    fetcher: Any = None
    try:
        if call.init_fn is not None:
            call.init_fn(worker)
        fetcher = DatasetKind.create_fetcher(*fetcher_options)
    except Exception:
        failure = ExceptionWrapper(where=where)
    ended = False
    while (order := orders.get()) is not None:
        if isinstance(order, ResumeIteration):
            results.put((order, None))
            fetcher = DatasetKind.create_fetcher(*fetcher_options)
            ended = False
            continue
        if stop.is_set() or ended:
            continue
        number, index = order
        result: Any = failure
        failure = None
        if result is None:
            try:
                result = fetcher.fetch(index)
            except Exception as error:
                if os.getpid() != process:  # a child that the dataset forked: nobody else is here to be told
                    traceback.print_exc()
                    os._exit(1)
                ended = isinstance(error, StopIteration) and call.dataset_kind == DatasetKind.Iterable
                result = StreamEnded(worker) if ended else ExceptionWrapper(where=where)
        if os.getpid() != process:
            os._exit(1)
        results.put((number, result))
        del order, index, result
