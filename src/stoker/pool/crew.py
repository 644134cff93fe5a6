"""Crews: the processes or threads that prepare batches. They are started together, watched, and ended together.

Who lives is what the kernel says. A crew ends in a bounded time: workers are told, then waited for, then ended by force,
which a thread cannot be.
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
    """Those who prepare."""

    def check(self) -> None:
        """Raise if somebody has ended who should not have."""

    def check_ends(self) -> None:
        """After `close`: raise if somebody was ended by another than the crew."""

    @property
    def pids(self) -> list[int]:
        """Worker processes."""

    def pid(self, worker: int) -> int:
        """The process of a worker."""

    def close(self) -> None:
        """End them all."""


class ProcessCrew:
    """Worker processes. `stop` tells them to end; `damage` knows more about a death by a signal."""

    def __init__(self, processes: Sequence[Any], stop: Callable[[], object], damage: Callable[[], str] = str) -> None:
        self._processes = processes
        self._stop = stop
        self._damage = damage
        self._owner = os.getpid()
        self._closed = False
        _crews.add(self)

    def check(self) -> None:
        """Raise if a worker has ended."""
        ended = [worker for worker in self._processes if worker.exitcode is not None]
        if ended:
            pids = ", ".join(str(worker.pid) for worker in ended)
            how = ends_in_words(self._processes, ended, self._damage)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly [{how}]")

    def check_ends(self) -> None:
        """After `close`: raise if a signal has ended a worker that was about to end by itself."""
        ended = [worker for worker in self._processes if (worker.exitcode or 0) < 0 and worker not in self._forced]
        if ended:
            raise RuntimeError(ends_in_words(self._processes, ended, self._damage))

    @property
    def pids(self) -> list[int]:
        """Worker processes."""
        return [worker.pid or 0 for worker in self._processes]

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        return self._processes[worker].pid or 0

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:
        """End all workers, those that a signal has stopped included."""
        if self._closed or self._owner != getpid():
            return
        self._closed = True
        let_go_on(self._processes)
        self._stop()
        self._forced: list[Any] = []
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


class ThreadCrew:
    """Worker threads, each of which runs `work(number)`. `stop` tells them to end."""

    def __init__(self, work: Callable[[int], object], workers: int, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._owner = os.getpid()
        self._threads = [
            threading.Thread(target=work, args=(number,), name=f"stoker-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()
        _crews.add(self)

    def check(self) -> None:
        """Raise if a worker has ended."""
        ended = [thread.name for thread in self._threads if not thread.is_alive()]
        if ended:
            raise RuntimeError(f"DataLoader worker thread exited unexpectedly ({', '.join(ended)})")

    def check_ends(self) -> None:
        """A thread ends by itself."""

    @property
    def pids(self) -> list[int]:
        """There is none but this one."""
        return []

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        return self._owner

    def close(self, getpid: Callable[[], int] = os.getpid) -> None:
        """Have all threads end after the batch that they are at."""
        if self._owner != getpid():
            return
        self._stop()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


_crews: "weakref.WeakSet[ProcessCrew | ThreadCrew]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Before the interpreter ends.

    Python ends threads that are left over wherever they are, and within torch's own code that aborts the process; and it
    would wait for ever for a process that a signal has stopped.
    """
    for crew in list(_crews):
        crew.close()


def let_go_on(workers: Sequence[Any]) -> None:
    """Let workers go on that a signal has stopped, or is about to stop: they are to be told to end."""
    for worker in workers:
        if worker.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGCONT)


_BY_BAD_MEMORY = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)
"""What a store that was torn while it was mapped ends a process with."""


def ends_in_words(workers: Sequence[Any], ended: Sequence[Any], damage: Callable[[], str]) -> str:
    """How some of the workers have ended. `damage` knows what may be wrong with memory that they had mapped."""
    numbers = {id(worker): number for number, worker in enumerate(workers)}
    how = ", ".join(f"worker {numbers[id(one)]}: {how_it_ended(one.pid, one.exitcode)}" for one in ended)
    if any(-one.exitcode in _BY_BAD_MEMORY for one in ended) and (why := damage()):
        how += f"; {why}. It is not used again: start anew"
    return how


def how_it_ended(pid: int | None, exitcode: int) -> str:
    """The end of a worker, in words."""
    if exitcode >= 0:
        return f"pid {pid} exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = str(-exitcode)
    # In torch's words, which it finds only if its signal handler comes first.
    return f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-exitcode)} ({name})"
