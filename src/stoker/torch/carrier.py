"""The training process's side of the loader while torch carries the work.

torch's iterators keep their worker protocol, order, errors and shutdown. Ours differ in four places: messages go over
`lines`, workers collate with `Worker`, arrived batches are unwrapped and metered, and errors say who is meant.
"""

import signal
from collections import deque
from typing import Any

import torch.multiprocessing
import torch.utils.data.dataloader as torch_dataloader

from stoker.meter import Meter, now
from stoker.stage.lease import Area, Inbox
from stoker.stage.lines import LinedContext
from stoker.torch.worker import Arrived, Worker, count_samples

LOOK_AFTER_WORKERS_S = 2.0
"""How often a waiting loader asks whether its workers live, should their signal not have told."""


class _Instead:
    """A loader as torch's iterators see it, with some attributes replaced."""

    def __init__(self, loader: Any, **attributes: Any) -> None:
        self._loader = loader
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class InlineIter(torch_dataloader._SingleProcessDataLoaderIter):
    """`num_workers=0`: torch's own iterator, metered."""

    def __init__(self, loader: Any, meter: Meter) -> None:
        self._began = now()
        self._meter = meter
        self._samples = 0
        self._user_collate = loader.collate_fn
        super().__init__(_Instead(loader, collate_fn=self._collate_and_count))
        meter.workers = 0
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def _collate_and_count(self, samples: Any) -> Any:
        self._samples = count_samples(samples) if self._auto_collation else 1
        return self._user_collate(samples)

    def _next_data(self) -> Any:
        began = now()
        data = super()._next_data()  # type: ignore[no-untyped-call]
        meter, ended = self._meter, now()
        meter.wait_s += ended - began
        meter.prep_s += ended - began
        meter.samples += self._samples
        meter.batches += 1
        if self._num_yielded == 0:
            meter.first_batch_s = ended - self._began
        return data


class WorkersIter(torch_dataloader._MultiProcessingDataLoaderIter):
    """`num_workers>0`: torch's workers and queues, batches in slots."""

    def __init__(self, loader: Any, meter: Meter) -> None:
        self._began = now()
        self._meter = meter
        self._asked: list[deque[float]] = [deque() for _ in range(loader.num_workers)]
        self._busy_until = [0.0] * loader.num_workers
        area = Area(loader.num_workers, loader.prefetch_factor)
        self._inbox = Inbox(area)
        worker = Worker(area, loader.collate_fn, batched=loader._auto_collation)
        context = loader.multiprocessing_context or torch.multiprocessing
        self._lines = LinedContext(context, loader.num_workers, worker.begin)
        super().__init__(_Instead(loader, collate_fn=worker.collate, multiprocessing_context=self._lines))
        self._lines.leave_to_workers()
        meter.workers = loader.num_workers
        self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._began = now()
        for asked in self._asked:
            asked.clear()
        super()._reset(loader, first_iter)  # type: ignore[no-untyped-call]

    def _try_put_index(self) -> None:
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx != number:
            self._asked[self._task_info[number][0]].append(now())

    def _next_data(self) -> Any:
        began = now()
        data = super()._next_data()  # type: ignore[no-untyped-call]
        meter, ended = self._meter, now()
        meter.wait_s += ended - began
        meter.batches += 1
        if self._num_yielded == 0:
            meter.first_batch_s = ended - self._began
        return data

    def _process_data(self, data: Any, *worker: int) -> Any:
        data = super()._process_data(data, *worker)  # type: ignore[no-untyped-call]
        if type(data) is not Arrived:
            return data
        asked, worker_id, finished = self._asked[data.worker], data.worker, data.finished
        began = max(asked.popleft() if asked else finished, self._busy_until[worker_id])
        self._busy_until[worker_id] = finished
        self._meter.prep_s += max(0.0, finished - began)
        self._meter.samples += data.samples
        return data.batch

    def _try_get_data(self, timeout: float = LOOK_AFTER_WORKERS_S) -> Any:
        try:
            return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
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
            return super()._get_data()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
            number = self._task_info[self._rcvd_idx][0]
            raise RuntimeError(
                f"{error}, waiting for worker {number} (pid {self._workers[number].pid}), which is alive. "
                "Raise timeout=, or see what it does with `py-spy dump --pid`."
            ) from None

    def _shutdown_workers(self) -> None:
        super()._shutdown_workers()  # type: ignore[no-untyped-call]
        if getattr(self, "_shutdown", True):  # torch leaves it to the kernel when the interpreter ends
            self._lines.close()
            self._inbox.close()


def _how_it_ended(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
