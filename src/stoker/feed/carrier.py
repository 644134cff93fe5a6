"""The training process's side of the loader while torch carries the work.

torch's iterators keep their worker protocol, order, errors and shutdown. Ours differ in three places: batches lie in slots
and reports come over lines, batches are metered and counted as progress, and errors name the worker process.

This module and `stateful`, which adds to it, override methods of torch's iterators and read their attributes; no others do.
Iterators of other modules derive from `MapIter`, and define `_begin_epoch`, `_obtain` and `_saw`, which are ours.
"""

import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from stoker.cache.notes import noted
from stoker.device.samples import Settling
from stoker.feed.ahead import Ahead
from stoker.feed.coming import AHEAD, Coming
from stoker.feed.finishing import Finishing
from stoker.feed.progress import Progress, is_batched
from stoker.feed.refusing import refuse_in_children
from stoker.feed.view import LoaderView, seeds_of
from stoker.internals.names import BaseIterator, InlineIterator, WorkersIterator, pin_memory, profiler_enabled
from stoker.live.record import Record
from stoker.meter import Meter, now
from stoker.plan import DEVICE, HOST
from stoker.pool.crew import ends_in_words, let_go_on
from stoker.pool.maker import CountingCollate
from stoker.pool.processes import LoaderSlots
from stoker.pool.work import Made
from stoker.pool.worker import Beginning, Opened, Opener, SlotCollate, SlotRoom, are_forked, explain, noted_order
from stoker.slots.context import LinedContext
from stoker.tensor.caching import Caching

LOOK_AFTER_WORKERS_S = 2.0
"""How often a waiting loader asks whether its workers live, in case no signal told it of a death."""


class _Watched:
    """What all our iterators do: obtain a batch, time it and count it."""

    _meter: Meter
    _progress: Progress
    _caching: Caching
    _ahead: Ahead | None
    _record: Record | None
    _began: float
    _arrived = 0
    _is_due = False
    """Whether the batch that is waited for may still come."""
    _num_yielded: int
    _has_ended: bool
    _pin_memory: bool
    _sampler_iter: Any
    _skip: int
    finishing: Finishing | None
    _coming: Coming | None = None
    """Where batches are decoded ahead of the loop."""
    _decodes_ahead = AHEAD
    """How many batches."""

    def _watch(self, loader: Any) -> None:
        self.finishing = loader.here.finishing
        self._coming = None if self.finishing is None or self.finishing.where != DEVICE else Coming(self._decodes_ahead)
        self._began, self._has_ended = now(), False
        self._meter, self._progress, self._skip = loader._meter, loader._progress, loader._skip_batches
        self._caching, self._record, self._ahead = loader.here.caching, loader.here.record(), loader.here.ahead
        if self._ahead is not None:
            self._ahead.over()
        self._meter.began_at = self._meter.began_at or self._began
        self._count()

    def _count(self) -> None:
        """Add to the meter what this process has fetched."""
        if (counts := self._caching.take()) is not None:
            self._meter.add(counts)

    def _obtain(self) -> Any:
        return super()._next_data()  # type: ignore[misc]

    def _saw(self) -> None:
        self._progress.saw(self._arrived)
        if self._ahead is not None:
            self._ahead.took()

    def _next_data(self) -> Any:
        began, record = now(), self._record
        if record is not None:
            record.times[0] = began
        self._arrived = 0
        try:
            data = self._obtain() if self._coming is None else self._coming.take(self, self._obtain)
        except StopIteration:
            if not self._has_ended:  # or the loop is in a later epoch, perhaps
                self._progress.end()
            self._has_ended = True
            if self._ahead is not None:
                self._ahead.over()
            if record is not None:
                record.tell(self._meter, self._progress, now(), is_over=True)
            self._caching.warn_if_useless(self._meter)
            raise
        except BaseException as error:
            if isinstance(error, Exception) and not self._is_due:
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

    def _finished(self, made: Made, batch: Any) -> Any:
        """Do what workers have left to the device."""
        if self.finishing is None or type(made.rest) is not tuple:
            return batch
        self._meter.on_device += made.samples
        return self.finishing.finish(batch, made.rest)

    def _pinned(self, batch: Any) -> Any:
        """Page-lock a batch that was made in this process, if the loader has `pin_memory`."""
        return pin_memory(batch) if self._pin_memory else batch

    def _next_index(self) -> Any:
        while self._skip:  # a resumed loop has seen these already
            next(self._sampler_iter)
            self._skip -= 1
        index = next(self._sampler_iter)
        if self._ahead is not None:
            self._ahead.ordered(index)
        return index


class InlineIter(_Watched, InlineIterator):
    """`num_workers=0`: torch's own iterator, watched."""

    def __init__(self, loader: Any) -> None:
        self._watch(loader)
        self._collate = CountingCollate(loader.collate_fn, batched=is_batched(loader), batch_size=loader.batch_size)
        super().__init__(LoaderView(loader, collate_fn=self._collate))
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

    def _next_index(self) -> Any:
        return noted(super()._next_index())


class WorkersIter(_Watched, WorkersIterator):
    """`num_workers>0` without a seed: torch's iterator and worker loop, over slots and lines of ours."""

    _shutdown = True
    _lines: LinedContext | None = None

    def __init__(self, loader: Any, slots: LoaderSlots) -> None:
        self._watch(loader)
        self._owner = os.getpid()
        self._asked: list[deque[float]] = [deque() for _ in range(loader.num_workers)]
        self._busy_until = [0.0] * loader.num_workers
        self._slots = slots
        context = loader.multiprocessing_context or torch.multiprocessing
        room = SlotRoom(slots.inbox.area, loader.caching, alike_everywhere=False, records=slots.records)
        collate_fn = loader.collate_fn if slots.records == HOST else Settling(loader.collate_fn)
        collate = SlotCollate(room, collate_fn, batched=is_batched(loader), batch_size=loader.batch_size)
        opener, begin = self._parts(loader, slots, room, forked=are_forked(context))
        hand_out = None if loader.caching.staging is None else noted_order
        self._lines = LinedContext(context, loader.num_workers, begin, opener.arrived, explain, hand_out=hand_out)
        with self._lines.starting():
            lines = {"collate_fn": collate, "multiprocessing_context": self._lines, **seeds_of(loader)}
            super().__init__(LoaderView(loader, **lines, **({"pin_memory": False} if slots.pins else {})))
        self._meter.workers = loader.num_workers
        self._profile_name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        refuse_in_children(self)

    def _parts(self, loader: Any, slots: LoaderSlots, room: SlotRoom, *, forked: bool) -> tuple[Opener, Beginning]:
        return Opener(slots.inbox, pins=slots.pins), Beginning(room, forked=forked)

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
        if type(data) is Opened:
            made, data = data.made, data.batch
        elif type(data) is Made:  # there was no slot for it
            made, data = data, data.batch
        else:
            return data
        # The worker began this batch when it was ordered, or when the batch before was done.
        began, self._busy_until[worker] = max(asked, self._busy_until[worker]), made.finished
        self._meter.prep_s += max(0.0, made.finished - began)
        self._arrived += made.samples
        if made.counts is not None:
            self._meter.add(made.counts)
        return self._finished(made, data)

    def _try_get_data(self, timeout: float = LOOK_AFTER_WORKERS_S) -> Any:
        try:
            got = super()._try_get_data(timeout)
            if got[0]:
                return got if not self._has_come(got[1][0]) else (False, None)
            if self._record is not None:
                self._record.late(self._meter.batches, self._late_pid())
            return got
        except RuntimeError as error:
            ended = [worker for worker in self._workers if worker.exitcode]
            if not ended or "worker" not in str(error):
                raise
            how = ends_in_words(self._workers, ended, self._caching.damage)
            raise RuntimeError(f"{str(error).rstrip()} [{how}]") from error

    def _has_come(self, number: Any) -> bool:
        """Whether a batch was reported before, by a child that the dataset forked and that raised an error."""
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
        """The process that prepares the next batch, or 0 where any batch may come next."""
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

    @property
    def pids(self) -> list[int]:
        """The pids of the worker processes."""
        return [worker.pid or 0 for worker in self._workers]

    def close(self) -> None:
        """End the workers now."""
        self._shutdown_workers()

    def _shutdown_workers(
        self, getpid: Callable[[], int] = os.getpid, ending: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        if ending():
            return  # all workers have ended, and modules may be empty: dill, for one, keeps a script's names till then
        if self._owner != getpid():
            return  # a forked child, whose garbage collector has met an iterator that it inherited
        workers = getattr(self, "_workers", [])
        if self._lines is not None and not self._shutdown:
            let_go_on(workers)
        super()._shutdown_workers()
        if not self._shutdown:
            return  # the interpreter ends, and torch leaves it to the kernel
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()
            for worker in workers:
                if worker.is_alive():  # a debugger has stopped it, perhaps
                    worker.kill()
                    worker.join()
            self._slots.give_back()


class MapStyle:
    """For map-style datasets: torch's `__next__` checks the length of iterable datasets only."""

    _next_data: Callable[[], Any]
    _num_yielded: int

    def __next__(self) -> Any:
        # torch opens a profiler's range for every batch, a tenth of a small batch's cost. Only a profiler needs it.
        if profiler_enabled():
            return super().__next__()  # type: ignore[misc]
        data = self._next_data()
        self._num_yielded += 1
        return data


class MapIter(MapStyle, _Watched, BaseIterator):
    """An iterator that does not get its batches from torch's: `_obtain` gets them."""

    def __init__(self, loader: Any, *, indices: Any = None, draws_seed: bool = False) -> None:
        """Indices come from the loader's samplers, unless others are given. Workers may need a seed, as torch draws it."""
        self._watch(loader)
        generator = seeds_of(loader) if draws_seed else {"generator": torch.Generator()}  # then the user's are left alone
        super().__init__(LoaderView(loader, indices=indices, **generator))  # type: ignore[arg-type]

    @property
    def base_seed(self) -> int:
        """The seed of worker 0. Worker k has this number plus k."""
        return int(self._base_seed)

    @property
    def pins(self) -> bool:
        """Whether this iterator page-locks batches."""
        return self._pin_memory

    def _begin_epoch(self) -> None:
        """Called when another epoch begins with the same workers."""

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._watch(loader)
        super()._reset(loader, first_iter)
        self._begin_epoch()


class MapInlineIter(MapStyle, InlineIter):
    """`num_workers=0`, map-style."""


class MapWorkersIter(MapStyle, WorkersIter):
    """`num_workers>0`, map-style."""
