"""Crews: the processes or threads that prepare batches. They are started together, watched, and ended together.

The kernel says which workers live. A crew ends in a bounded time: workers are told to end, then waited for, then killed.
A thread cannot be killed.
"""

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

_END_S = 5.0


class Crew(Protocol):
    """The workers of a pool, processes or threads."""

    def check(self) -> None:
        """Raise if a worker has ended too early."""

    def check_ends(self) -> None:
        """After `close`: raise if a worker was killed, and not by the crew."""

    @property
    def pids(self) -> list[int]:
        """The pids of the worker processes."""

    def pid(self, worker: int) -> int:
        """The pid of the process that a worker runs in."""

    def close(self) -> None:
        """End all workers within a bounded time."""


class ProcessCrew:
    """Worker processes. `stop` tells them to end; `damage` explains a death by a signal, if it can."""

    def __init__(self, processes: Sequence[Any], stop: Callable[[], object], damage: Callable[[], str] = str) -> None:
        self._processes = processes
        self._stop = stop
        self._damage = damage
        self._owner = os.getpid()
        self._closed = False
        self._forced: list[Any] = []
        """Workers that had to be ended by a signal."""
        _crews.add(self)

    def check(self) -> None:
        """Raise if a worker has ended."""
        ended = [worker for worker in self._processes if worker.exitcode is not None]
        if ended:
            pids = ", ".join(str(worker.pid) for worker in ended)
            how = ends_in_words(self._processes, ended, self._damage)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly [{how}]")

    def check_ends(self) -> None:
        """After `close`: raise if a signal killed a worker that was about to end by itself."""
        ended = [worker for worker in self._processes if (worker.exitcode or 0) < 0 and worker not in self._forced]
        if ended:
            raise RuntimeError(ends_in_words(self._processes, ended, self._damage))

    @property
    def pids(self) -> list[int]:
        """The pids of the worker processes."""
        return [worker.pid or 0 for worker in self._processes]

    def pid(self, worker: int) -> int:
        """The pid of the process that a worker runs in."""
        return self._processes[worker].pid or 0

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:
        """End all workers, even those that a signal has suspended."""
        if self._closed or self._owner != getpid():
            return
        let_go_on(self._processes)
        self._stop()
        deadline = time.monotonic() + _END_S
        for worker in self._processes:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                self._forced.append(worker)
                worker.terminate()
                worker.join(_END_S / 5)
            if worker.is_alive():  # a debugger has stopped it, perhaps
                worker.kill()
                worker.join()
        self._closed = True
        self._stop = _nothing  # which may refer to all that the workers have worked with


class ThreadCrew:
    """Worker threads. Each runs `work(number)`; `stop` tells them to end."""

    def __init__(self, work: Callable[[int], object], workers: int, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._owner = os.getpid()
        self._threads = [
            threading.Thread(target=work, args=(number,), name=f"stoker-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        _crews.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close()
            raise

    def check(self) -> None:
        """Raise if a worker has ended."""
        ended = [thread.name for thread in self._threads if not thread.is_alive()]
        if ended:
            raise RuntimeError(f"DataLoader worker thread exited unexpectedly ({', '.join(ended)})")

    def check_ends(self) -> None:
        """Nothing to check: no signal ends a thread alone."""

    @property
    def pids(self) -> list[int]:
        """Empty: threads have no process of their own."""
        return []

    def pid(self, worker: int) -> int:
        """The pid of the process that a worker runs in."""
        return self._owner

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:
        """Let every thread finish its current batch, then end."""
        if self._owner != getpid():
            return
        self._stop()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._stop = _nothing


def _nothing() -> None:
    """What is left to tell workers that have been told to end."""


_crews: "weakref.WeakSet[ProcessCrew | ThreadCrew]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Close all crews before the interpreter ends.

    Python would end remaining threads at any line, which aborts the process if they are within torch's code. And it would
    wait for ever for a process that a signal has suspended.
    """
    for crew in list(_crews):
        crew.close()


def let_go_on(workers: Sequence[Any]) -> None:
    """Resume workers that a signal has suspended, or is about to suspend, so that they can be told to end."""
    for worker in workers:
        if worker.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGCONT)


_BY_BAD_MEMORY = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)
"""The signals that kill a process when a store is damaged while it is mapped."""


def ends_in_words(workers: Sequence[Any], ended: Sequence[Any], damage: Callable[[], str]) -> str:
    """How some workers have ended, in words. `damage` tells what may be wrong with memory that they had mapped."""
    numbers = {id(worker): number for number, worker in enumerate(workers)}
    how = ", ".join(f"worker {numbers[id(one)]}: {how_it_ended(one.pid, one.exitcode)}" for one in ended)
    if any(-one.exitcode in _BY_BAD_MEMORY for one in ended) and (why := damage()):
        how += f"; {why}. It is not used again: start anew"
    return how


def how_it_ended(pid: int | None, exitcode: int) -> str:
    """How one worker has ended, in words."""
    if exitcode >= 0:
        return f"pid {pid} exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = str(-exitcode)
    # torch's own words. torch says them only if its signal handler runs first.
    return f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-exitcode)} ({name})"
