"""The workers of a group's member: threads or processes that prepare what the group's table hands out.

A worker enters itself in the table before it takes work. When its training process has died, it removes that member with
its files, and ends.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from stoker.group.door import leave, sweep
from stoker.group.staging import GroupAddress, GroupStaging
from stoker.host import process
from stoker.host.parent import end_with_parent
from stoker.internals.names import ExceptionWrapper
from stoker.pool.serving import Duty, serve
from stoker.pool.table import Orders, TableExchange, portable
from stoker.pool.worker import explain_breakpoints, leave_inherited
from stoker.tensor.caching import Caching
from stoker.tensor.worker_info import shown


def always() -> bool:
    """Whether somebody still wants batches, where only the end of a process ends that."""
    return True


def where() -> str:
    """Where an error happened, as messages say it."""
    return f"in a worker of pid {os.getppid()}, pid {os.getpid()}"


def _serve(duty: Duty, worker: int, staging: GroupStaging, exchange: TableExchange) -> None:
    maker = duty.begin_or_raise(worker)
    with staging.table.change() as group:
        if staging.member not in group.members:
            return
        group.add_worker(staging.member, staging.process)
    serve(maker, where(), exchange, exchange)


class ThreadServing:
    """What a worker thread of a group's member does."""

    def __init__(
        self,
        duty: Duty,
        staging: GroupStaging,
        orders: Orders,
        caching: Caching,
        failures: Any,
        stopped: Callable[[], bool],
    ) -> None:
        self._duty, self._staging, self._orders, self._caching = duty, staging, orders, caching
        self._failures, self._stopped = failures, stopped

    def __call__(self, worker: int) -> None:
        """Prepare batches until the crew stops this thread."""
        exchange = TableExchange(self._staging, self._orders, self._caching, lambda: not self._stopped())
        try:
            with self._caching.active(), shown(self._duty.info(worker)):
                _serve(self._duty, worker, self._staging, exchange)
        except Exception:
            if not self._stopped():
                self._failures.put(portable(ExceptionWrapper(where=where())))


class ProcessServing:
    """What a worker process of a group's member does. It is sent there."""

    def __init__(
        self, duty: Duty, address: GroupAddress, orders: Orders, caching: Caching, failures: Any, *, forked: bool
    ) -> None:
        self._duty, self._address, self._orders, self._caching = duty, address, orders, caching
        self._failures = failures
        self._forked = forked

    def __call__(self, worker: int) -> None:
        """Prepare batches until the member leaves or its training process ends."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process is interrupted too, and reports it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if self._forked:
            leave_inherited()
        explain_breakpoints()
        self._duty.become_worker(worker)
        try:
            staging = GroupStaging(self._address)
        except OSError:  # the training process has gone, and this worker was to remove what it leaves
            with contextlib.suppress(OSError):
                sweep()
            return
        leaving = threading.Event()
        is_watched = end_with_parent(lambda: _take_leave(staging, leaving))
        try:
            self._caching.begin()
            _serve(self._duty, worker, staging, TableExchange(staging, self._orders, self._caching, always))
        except Exception:
            self._failures.put(portable(ExceptionWrapper(where=where())))
            raise SystemExit(1) from None
        finally:
            if is_watched and (leaving.is_set() or _is_parent_gone()):
                # The member is out of the table: a worker removed it that found it dead. Its files may still be there. The
                # thread that watches removes them and ends this process.
                threading.Event().wait()


def _is_parent_gone() -> bool:
    """The kernel is asked: the pipe by which multiprocessing knows is held open by workers that were forked later."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return False
    found = process.find(parent.pid)
    return found is None or found.is_dead


def _take_leave(staging: GroupStaging, leaving: threading.Event) -> None:
    """Remove a member whose training process is dead, with the files it left."""
    leaving.set()
    with contextlib.suppress(Exception):
        leave(staging)
