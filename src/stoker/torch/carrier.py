"""The training process's side of the loader while torch carries the work.

torch's iterators keep their worker protocol, order, errors and shutdown. Ours differ in three places: workers and queues
are those of a `Transport`, batches are metered and counted as progress, and errors say who is meant.
"""

import os
import signal
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataloader as torch_dataloader

from stoker.host import forks
from stoker.live.record import Record
from stoker.meter import Meter, now
from stoker.torch.caching import Caching
from stoker.torch.progress import Progress
from stoker.torch.transport import Transport
from stoker.torch.worker import Arrived, count_samples

LOOK_AFTER_WORKERS_S = 2.0
"""How often a waiting loader asks whether its workers live, should their signal not have told."""

_BY_BAD_MEMORY = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)
"""What a store that was torn while it was mapped ends a process with."""


class Instead:
    """A loader as torch's iterators see it, with some attributes replaced."""

    def __init__(self, loader: Any, **attributes: Any) -> None:
        self._loader = loader
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Watched:
    """What our iterators have in common: a batch is obtained, timed and counted."""

    _meter: Meter
    _progress: Progress
    _caching: Caching
    _record: Record | None
    _began: float
    _arrived = 0
    _num_yielded: int
    _sampler_iter: Any
    _skip: int

    def _watch(self, loader: Any) -> None:
        self._began = now()
        self._meter, self._progress, self._skip = loader._meter, loader._progress, loader._skip_batches
        self._caching, self._record = loader.caching, loader._published
        self._meter.began_at = self._meter.began_at or self._began
        self._count()

    def _count(self) -> None:
        """Add what was counted in this process."""
        if (counts := self._caching.take()) is not None:
            self._meter.add(counts)

    def _obtain(self) -> Any:
        return super()._next_data()  # type: ignore[misc]

    def _saw(self) -> None:
        self._progress.saw(self._arrived)

    def _next_data(self) -> Any:
        began, record = now(), self._record
        if record is not None:
            record.times[0] = began
        self._arrived = 0
        try:
            data = self._obtain()
        except StopIteration:
            self._progress.end()
            if record is not None:
                record.tell(self._meter, self._progress, now(), is_over=True)
            self._caching.warn_if_useless(self._meter)
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                self._saw()  # the batch is lost, and the next one comes next
            if record is not None:
                record.tell(self._meter, self._progress, now())
            raise
        meter, ended = self._meter, now()
        meter.wait_s += ended - began
        meter.batches += 1
        meter.samples += self._arrived
        if self._num_yielded == 0:
            meter.first_batch_s = ended - self._began
        self._saw()
        if record is not None:
            record.tell(meter, self._progress, ended)
        return data

    def _next_index(self) -> Any:
        while self._skip:  # a resumed loop has seen these already
            next(self._sampler_iter)
            self._skip -= 1
        return next(self._sampler_iter)


class _CountingCollate:
    """The user's `collate_fn`, and how many samples it was given last."""

    def __init__(self, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self.collate_fn = collate_fn
        self.batched = batched
        self.samples = 0

    def __call__(self, samples: Any) -> Any:
        self.samples = count_samples(samples) if self.batched else 1
        return self.collate_fn(samples)


class InlineIter(_Watched, torch_dataloader._SingleProcessDataLoaderIter):
    """`num_workers=0`: torch's own iterator, watched."""

    def __init__(self, loader: Any) -> None:
        self._watch(loader)
        self._collate = _CountingCollate(loader.collate_fn, batched=loader._auto_collation)
        super().__init__(Instead(loader, collate_fn=self._collate))
        self._meter.workers = 0
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def _obtain(self) -> Any:
        began = now()
        with self._caching.active():
            data = super()._obtain()
        self._meter.prep_s += now() - began
        self._count()
        self._arrived = self._collate.samples
        return data


_iterators: "weakref.WeakSet[WorkersIter]" = weakref.WeakSet()


def _refuse() -> Any:
    """What a forked child gets of its parent's iterator: a batch that it took would be missing there."""
    raise RuntimeError("this iterator belongs to the process that this one was forked from: call iter() of the loader")


def _after_fork_in_child() -> None:
    for iterator in list(_iterators):
        iterator._obtain = _refuse  # type: ignore[method-assign]


forks.register(forks.Stage.ITERATORS, after_in_child=_after_fork_in_child)


class WorkersIter(_Watched, torch_dataloader._MultiProcessingDataLoaderIter):
    """`num_workers>0`: torch's iterator over workers of ours."""

    _shutdown = True
    _transport: Transport | None = None

    def __init__(self, loader: Any, transport: Transport) -> None:
        self._watch(loader)
        self._owner = os.getpid()
        self._asked: list[deque[float]] = [deque() for _ in range(loader.num_workers)]
        self._busy_until = [0.0] * loader.num_workers
        self._transport = transport
        with transport.starting():
            pinning = {"pin_memory": False} if transport.pins else {}
            lines = {"collate_fn": transport.collate, "multiprocessing_context": transport.context}
            super().__init__(Instead(loader, **lines, **pinning))
        self._meter.workers = loader.num_workers
        self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        _iterators.add(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._watch(loader)
        for asked in self._asked:
            asked.clear()
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx != number:
            self._asked[self._task_info[number][0]].append(now())

    def _process_data(self, data: Any, worker: int) -> Any:
        asked = self._asked[worker].popleft() if self._asked[worker] else 0.0
        data = super()._process_data(data, worker)
        if type(data) is not Arrived:
            return data
        # The worker was busy with this batch since it was asked for it, or since it was done with the one before.
        began, self._busy_until[worker] = max(asked, self._busy_until[worker]), data.finished
        self._meter.prep_s += max(0.0, data.finished - began)
        self._arrived += data.samples
        if data.counts is not None:
            self._meter.add(data.counts)
        return data.batch

    def _try_get_data(self, timeout: float = LOOK_AFTER_WORKERS_S) -> Any:
        try:
            got = super()._try_get_data(timeout)
            if got[0] and self._has_come(got[1][0]):
                return False, None
            if not got[0] and self._record is not None:
                self._record.late(self._meter.batches, self._late_pid())
            return got
        except RuntimeError as error:
            ends = ", ".join(
                f"worker {number}: {how_it_ended(worker.pid, worker.exitcode)}"
                for number, worker in enumerate(self._workers)
                if worker.exitcode
            )
            if not ends or "worker" not in str(error):
                raise
            if any(-(worker.exitcode or 0) in _BY_BAD_MEMORY for worker in self._workers) and (
                why := self._caching.damage()
            ):
                ends += f"; {why}. It is not used again: start anew"
            raise RuntimeError(f"{str(error).rstrip()} [{ends}]") from error

    def _has_come(self, number: Any) -> bool:
        """Whether a batch was reported before, by a child that the dataset forked, and that has raised an error."""
        return isinstance(number, int) and len(self._task_info.get(number, ())) != 1

    def _get_data(self) -> Any:
        if not self._timeout:
            return super()._get_data()
        deadline = now() + self._timeout
        while (remaining := deadline - now()) > 0:
            arrived, data = self._try_get_data(min(remaining, LOOK_AFTER_WORKERS_S))
            if arrived:
                return data
        raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds{self._who_is_late()}")

    def _late_pid(self) -> int:
        """The process whose batch is the next, or 0 where any batch would do."""
        info = self._task_info.get(self._rcvd_idx)
        return self._workers[info[0]].pid or 0 if info is not None and self._in_order else 0

    def _who_is_late(self) -> str:
        info = self._task_info.get(self._rcvd_idx)
        if info is None:
            return ""
        return (
            f", waiting for worker {info[0]} (pid {self._workers[info[0]].pid}), which is alive. "
            "Raise timeout=, or see what it does with `py-spy dump --pid`."
        )

    def _shutdown_workers(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self._owner != getpid():
            return  # a forked child, whose garbage collector has met an iterator that it inherited
        workers = getattr(self, "_workers", [])
        if self._transport is not None and not self._shutdown:
            self._transport.wake(workers)
        super()._shutdown_workers()
        if not self._shutdown:
            return  # the interpreter ends, and torch leaves it to the kernel
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(workers)


class _MapStyle:
    """For map-style datasets, of whose length torch has nothing to say in `__next__`."""

    _next_data: Callable[[], Any]
    _num_yielded: int

    def __next__(self) -> Any:
        # torch opens a profiler's range for every batch, a tenth of what a small batch costs: only if somebody profiles.
        if torch._C._autograd._profiler_enabled():
            return super().__next__()  # type: ignore[misc]
        data = self._next_data()
        self._num_yielded += 1
        return data


class MapIter(_MapStyle, _Watched):
    """What all our iterators over map-style datasets have in common."""


class MapInlineIter(_MapStyle, InlineIter):
    """`num_workers=0`, map-style."""


class MapWorkersIter(_MapStyle, WorkersIter):
    """`num_workers>0`, map-style."""


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
