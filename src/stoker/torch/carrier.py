"""The training process's side of the loader while torch carries the work.

torch's iterators keep their worker protocol, order, errors and shutdown. Ours differ in four places: messages go over
`lines`, workers collate with `Worker`, arrived batches are unwrapped and metered, and errors say who is meant.
"""

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import torch.multiprocessing
import torch.utils.data.dataloader as torch_dataloader

from stoker.meter import Meter, now
from stoker.stage.lease import Area, Inbox
from stoker.stage.lines import LinedContext
from stoker.torch.worker import Arrived, Opener, Worker, count_samples

LOOK_AFTER_WORKERS_S = 2.0
"""How often a waiting loader asks whether its workers live, should their signal not have told."""


class _Instead:
    """A loader as torch's iterators see it, with some attributes replaced."""

    def __init__(self, loader: Any, **attributes: Any) -> None:
        self._loader = loader
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _CountingCollate:
    """The user's `collate_fn`, and how many samples it was given last."""

    def __init__(self, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self.collate_fn = collate_fn
        self.batched = batched
        self.samples = 0

    def __call__(self, samples: Any) -> Any:
        self.samples = count_samples(samples) if self.batched else 1
        return self.collate_fn(samples)


class InlineIter(torch_dataloader._SingleProcessDataLoaderIter):
    """`num_workers=0`: torch's own iterator, metered."""

    def __init__(self, loader: Any, meter: Meter) -> None:
        self._began = now()
        self._meter = meter
        self._collate = _CountingCollate(loader.collate_fn, batched=loader._auto_collation)
        super().__init__(_Instead(loader, collate_fn=self._collate))
        meter.workers = 0
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def _next_data(self) -> Any:
        began = now()
        data = super()._next_data()
        meter, ended = self._meter, now()
        meter.wait_s += ended - began
        meter.prep_s += ended - began
        meter.samples += self._collate.samples
        meter.batches += 1
        if self._num_yielded == 0:
            meter.first_batch_s = ended - self._began
        return data


class WorkersIter(torch_dataloader._MultiProcessingDataLoaderIter):
    """`num_workers>0`: torch's workers, messages over lines, batches in slots."""

    _shutdown = True
    _lines: LinedContext | None = None
    _inbox: Inbox | None = None

    def __init__(self, loader: Any, meter: Meter, spares: list[Inbox]) -> None:
        self._began = now()
        self._meter = meter
        self._owner = os.getpid()
        self._spares = spares
        self._asked: list[deque[float]] = [deque() for _ in range(loader.num_workers)]
        self._busy_until = [0.0] * loader.num_workers
        self._inbox = _take_spare(spares, loader.num_workers, loader.prefetch_factor)
        worker = Worker(self._inbox.area, loader.collate_fn, batched=loader._auto_collation)
        context = loader.multiprocessing_context or torch.multiprocessing
        self._lines = LinedContext(context, loader.num_workers, worker.begin, Opener(self._inbox))
        with self._lines.starting():
            super().__init__(_Instead(loader, collate_fn=worker.collate, multiprocessing_context=self._lines))
        meter.workers = loader.num_workers
        self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._began = now()
        for asked in self._asked:
            asked.clear()
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx != number:
            self._asked[self._task_info[number][0]].append(now())

    def _next_data(self) -> Any:
        began = now()
        data = super()._next_data()
        meter, ended = self._meter, now()
        meter.wait_s += ended - began
        meter.batches += 1
        if self._num_yielded == 0:
            meter.first_batch_s = ended - self._began
        return data

    def _process_data(self, data: Any, *worker: int) -> Any:
        number = worker[0] if worker else getattr(data, "worker", 0)  # torch before 2.6 does not say whose it is
        asked = self._asked[number].popleft() if self._asked[number] else 0.0
        data = super()._process_data(data, *worker)
        if type(data) is not Arrived:
            return data
        # The worker was busy with this batch since it was asked for it, or since it was done with the one before.
        began, self._busy_until[number] = max(asked, self._busy_until[number]), data.finished
        self._meter.prep_s += max(0.0, data.finished - began)
        self._meter.samples += data.samples
        return data.batch

    def _try_get_data(self, timeout: float = LOOK_AFTER_WORKERS_S) -> Any:
        try:
            return super()._try_get_data(timeout)
        except RuntimeError as error:
            ends = ", ".join(
                f"worker {number} (pid {worker.pid}) {_how_it_ended(worker.exitcode)}"
                for number, worker in enumerate(self._workers)
                if worker.exitcode
            )
            if not ends or "worker" not in str(error):
                raise
            raise RuntimeError(f"{str(error).rstrip()} [{ends}]") from error

    def _get_data(self) -> Any:
        try:
            return super()._get_data()
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
            number = self._task_info[self._rcvd_idx][0]
            raise RuntimeError(
                f"{error}, waiting for worker {number} (pid {self._workers[number].pid}), which is alive. "
                "Raise timeout=, or see what it does with `py-spy dump --pid`."
            ) from None

    def _shutdown_workers(self) -> None:
        if self._owner != os.getpid():
            return  # a forked child, whose garbage collector has met an iterator that it inherited
        super()._shutdown_workers()
        if not self._shutdown:
            return  # the interpreter ends, and torch leaves it to the kernel
        lines, inbox = self._lines, self._inbox
        self._lines = self._inbox = None
        if lines is not None:
            lines.close()
        if inbox is not None:
            self._put_away(inbox)

    def _put_away(self, inbox: Inbox) -> None:
        """Keep the slots for the next epoch, whose first batches then find their pages in place."""
        if self._spares or any(worker.is_alive() for worker in getattr(self, "_workers", ())):
            inbox.close()
        else:
            inbox.renew()
            self._spares.append(inbox)


def _take_spare(spares: list[Inbox], workers: int, prefetch: int) -> Inbox:
    while spares:
        inbox = spares.pop()
        if (inbox.area.workers, inbox.area.prefetch) == (workers, prefetch):
            return inbox
        inbox.close()
    return Inbox(Area(workers, prefetch))


def _how_it_ended(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
