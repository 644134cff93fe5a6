"""Worker threads over queues: work is pushed to the worker that it is ordered for, and batches are handed over as they are.

Threads start at once, share the dataset and need no pickling. They help where user code releases the interpreter lock,
as decoders do, and everywhere on a Python without it. The default generators of Python, NumPy and torch belong to the whole
process, so they cannot be set for a sample here: a dataset that wants randomness takes the `rng` that it is given.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from stoker.internals.names import pin_memory
from stoker.meter import now
from stoker.pool.crew import Crew, ThreadCrew
from stoker.pool.serving import Duty, Result, serve
from stoker.pool.work import NOT_COMMON, Made, Work
from stoker.slots.outbox import Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import HereCollate
from stoker.tensor.worker_info import shown


class QueuePool:
    """Worker threads over queues. Batches are handed over as they are."""

    helpers = 0

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
        """Send work to a worker, without waiting."""
        self._orders[worker].put((name, work))

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. Raises `queue.Empty` after a time."""
        return self._results.get(timeout=timeout_s)

    def pid_of(self, name: int, worker: int) -> int:
        """The pid of this process."""
        return self.crew.pid(worker)

    def open(self, made: Made) -> Any:
        """The batch that was made."""
        return made.batch

    def drop(self, made: Made) -> None:
        """Nothing to free: the batch goes with its last reference."""

    @property
    def draws(self) -> bool:
        """False: nobody beside the crew helps, so nobody looks."""
        return False

    def claim_common(self) -> int:
        """Return NOT_COMMON: threads hand over parts of batches as they are."""
        return NOT_COMMON

    def free_common(self, slot: int) -> None:
        """Never called: threads have no common slots."""

    def open_common(self, parts: list[Made]) -> Any:
        """Never called: threads have no common slots."""

    def close(self) -> None:
        """End the worker threads."""
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
        """Do nothing: the training process notices that the thread has ended."""

    def publish(self, name: int, result: Result) -> None:
        """Hand over the result. A child that the dataset forked ends here: it has no reader."""
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
        """Prepare a worker thread: called once in each."""
        if self._device is not None:
            torch.accelerator.set_device_index(self._device)  # or it would be the first one, in a new thread

    @property
    def outbox(self) -> Outbox | None:
        """This thread's memory."""
        return None if self._here is None else self._here.outbox

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Make a batch in this thread's memory."""
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
