"""Iterators of loaders that keep states of others: of streams, and of datasets and samplers with `state_dict()`.

They are those of `carrier`, and note what belongs to the batch that the training loop has seen. Loaders in which nobody has
a state do not come here.
"""

import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data

from stoker.feed.carrier import InlineIter, MapInlineIter, MapWorkersIter, WorkersIter
from stoker.feed.positions import ArrivedState, InlinePosition, WorkersPosition, is_large
from stoker.feed.progress import Progress
from stoker.feed.resuming import NOTHING, Resuming
from stoker.feed.sampled import Sampled
from stoker.feed.view import LoaderView
from stoker.pool.processes import LoaderSlots
from stoker.pool.shards import for_one_epoch
from stoker.pool.start import StreamStart
from stoker.pool.stateful import StatefulBeginning, is_stateful, restore_dataset, restore_iterator, say_passed
from stoker.pool.webdatasets import CountedEpochs
from stoker.pool.work import Made
from stoker.pool.worker import Beginning, Opened, Opener, SlotRoom
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox

_TAKE_S = 0.1
"""How long somebody who asks for a state keeps the training loop from taking reports."""


def keeps_states(loader: Any) -> bool:
    """Whether somebody in a map-style loader has a state, or the order in which its batches are seen is not theirs."""
    is_unordered = loader.num_workers > 0 and not loader.in_order
    return is_unordered or is_stateful(loader.dataset) or Sampled.of(loader) is not None


class _StatefulInline:
    """For loaders without workers."""

    _dataset_fetcher: Any
    _index_sampler: Any
    _sampler_iter: Any
    _progress: Progress
    _pending: deque[Any]
    _skip: int

    def __init__(self, loader: Any) -> None:
        # A state may hold torch's generator, which the start of the epoch draws from, too: each has its own.
        resuming, loader._resuming = loader._resuming, NOTHING
        start = resuming.starts[0] if resuming.starts else StreamStart()
        given = copy.deepcopy(start)  # datasets may keep what they are given, and change it
        drawn = torch.get_rng_state()
        if resuming.generator is not None:
            torch.set_rng_state(resuming.generator)
        dataset, start = for_one_epoch(loader.dataset, start)
        restore_dataset(dataset, start)
        counted = dataset.state_dict() if isinstance(dataset, CountedEpochs) else None
        restored = torch.get_rng_state()
        torch.set_rng_state(drawn)
        if (sampled := Sampled.of(loader)) is not None:
            sampled.note_state()
        super().__init__(loader if dataset is loader.dataset else LoaderView(loader, dataset=dataset))  # type: ignore[call-arg]
        if sampled is not None:
            begun, is_fresh = self._sampler_iter, resuming.is_fresh
            self._sampler_iter = sampled.begin(resuming.sampler, is_fresh=is_fresh, begun=begun)
        while self._skip:
            next(self._sampler_iter)
            self._skip -= 1
        if resuming.generator is not None or not torch.equal(restored, drawn):
            torch.set_rng_state(restored)
        restore_iterator(self._dataset_fetcher, start, say_passed("the loader"))
        self._pending = deque(resuming.pending)
        self._position = InlinePosition(self._dataset_fetcher, self._progress, given, sampled, self._pending, counted)
        loader._position = self._position

    def _next_index(self) -> Any:
        self._position.given = None
        return self._pending.popleft() if self._pending else super()._next_index()  # type: ignore[misc]


class StatefulOpener(Opener):
    """Opens states, too, as soon as they arrive: a slot is free when nobody holds what lay in it."""

    def __init__(self, inbox: Inbox, *, pins: bool, states: Inbox) -> None:
        super().__init__(inbox, pins=pins)
        self._states = states

    def arrived(self, *values: Any) -> Opened:
        """Turn a report into what torch's iterator expects."""
        opened = super().arrived(*values)
        if is_large(opened.made.state):
            opened.made = opened.made._replace(state=self.state_of(opened.made))
        return opened

    def state_of(self, made: Made) -> ArrivedState | None:
        """The state after a batch, opened. Small ones wait for that until they are seen."""
        return ArrivedState(self._states, *made.state) if type(made.state) is tuple else made.state


class StatefulOrders:
    """For loaders with workers: notes what is ordered, and begins where a state says."""

    _sampler_iter: Any

    def _begin_notes(self, loader: Any) -> None:
        is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        self._has_states = is_stream or is_stateful(loader.dataset)
        self._resuming: Resuming = loader._resuming
        self._sampled = None if is_stream else Sampled.of(loader)
        self._is_unordered = not is_stream and not loader.in_order
        self._tracks = self._is_unordered or self._sampled is not None
        """Whether orders are noted: not all that were ordered before the last one that was seen may be seen."""
        persists = loader.persistent_workers
        self._position = WorkersPosition(self._sampled, has_states=self._has_states, persists=persists)
        complete = weakref.WeakMethod(self._complete)
        self._position.complete = lambda: call() if (call := complete()) is not None else None

    def _complete(self) -> None:
        """Wait until all workers have told how they begin."""
        raise NotImplementedError

    def _show_position(self, loader: Any) -> None:
        """Once the workers are there."""
        loader._position = self._position
        if loader.timeout and any(start.since for start in self._resuming.starts):
            self._complete()  # passing by is no batch that is late

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._resuming = loader._resuming
        self._position.begin(self._resuming.starts_of(loader.num_workers), self._resuming.next_worker)
        self._pending = deque(self._resuming.pending)
        self._position.begin_overtaken(self._pending)
        self._is_new_epoch = True
        if not first_iter:
            loader._position = self._position
        if self._sampled is not None:
            self._sampled.note_state()
        super()._reset(loader, first_iter)  # type: ignore[misc]

    def _next_index(self) -> Any:
        if self._is_new_epoch:
            self._begin_orders()
        is_overtaken = bool(self._pending)
        index = self._pending.popleft() if is_overtaken else super()._next_index()  # type: ignore[misc]
        if self._tracks:
            is_kept = self._is_unordered or is_overtaken
            self._position.ordered(self._next_number(), index if is_kept else None, is_overtaken=is_overtaken)
        return index

    def _next_number(self) -> int:
        """The number of the next order."""
        raise NotImplementedError

    def _worker_turns(self) -> Iterator[int]:
        """Whose turn it is."""
        raise NotImplementedError

    def _begin_orders(self) -> None:
        """Before the first order of an epoch: let the samplers and the workers' turns be where they were."""
        self._is_new_epoch = False
        for _ in range(self._resuming.next_worker):
            next(self._worker_turns())
        self._tracks = self._is_unordered or bool(self._pending)
        if self._sampled is not None:
            part, is_fresh = self._resuming.sampler, self._resuming.is_fresh
            self._sampler_iter = self._sampled.begin(part, is_fresh=is_fresh, begun=self._sampler_iter)
            self._tracks = self._tracks or self._sampled.has_state
            self._position.sampler_began()


class _StatefulWorkers(StatefulOrders):
    """For loaders with worker processes."""

    _in_order: bool
    _send_idx: int
    _task_info: dict[int, Any]
    _worker_queue_idx_cycle: Any
    _lines: Any
    _states: Inbox | None = None
    _decodes_ahead = 0  # a state is that of the batch which came last

    def __init__(self, loader: Any, slots: LoaderSlots) -> None:
        self._begin_notes(loader)
        self._early: deque[Any] = deque()
        """Reports that came while somebody waited for states."""
        self._taking = threading.RLock()
        """Held while a report is taken. A signal's handler may ask for a state while its thread holds it."""
        super().__init__(loader, slots)  # type: ignore[call-arg]
        self._show_position(loader)

    def _next_number(self) -> int:
        return self._send_idx

    def _worker_turns(self) -> Iterator[int]:
        return self._worker_queue_idx_cycle  # type: ignore[no-any-return]

    def _parts(self, loader: Any, slots: LoaderSlots, room: SlotRoom, *, forked: bool) -> tuple[Opener, Beginning]:
        if not self._has_states:
            return super()._parts(loader, slots, room, forked=forked)  # type: ignore[misc,no-any-return]
        area = Area(loader.num_workers, 0, kept=0)
        self._states = Inbox(area)
        every = -(-(loader.snapshot_every_n_steps or 0) // loader.num_workers)
        self._opener = StatefulOpener(slots.inbox, pins=slots.pins, states=self._states)
        starts = list(self._resuming.starts) or None
        return self._opener, StatefulBeginning(room, forked=forked, area=area, starts=starts, every=every)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._early.clear()
        super()._reset(loader, first_iter)

    def _try_get_data(self, *timeout: float) -> Any:
        with self._taking:
            return (True, self._early.popleft()) if self._early else self._take(*timeout)

    def _take(self, *timeout: float) -> Any:
        got = super()._try_get_data(*timeout)  # type: ignore[misc]
        if got[0] and type(got[1][0]) is tuple:
            (what, worker, generation), opened = got[1]
            self._position.told(what, worker, generation, self._opener.state_of(opened.made))
            return False, None
        return got

    def _complete(self) -> None:
        """Wait until all workers have told how they begin. Any thread may; a loop that waits for a batch hears it, too."""
        while self._lines is not None and not self._position.have_begun:
            if not self._taking.acquire(timeout=_TAKE_S):
                continue
            try:
                arrived, report = (False, None) if self._position.have_begun else self._take(_TAKE_S)
                if arrived:
                    self._early.append(report)
                    self._position.reported(self._task_info[report[0]][0])
            finally:
                self._taking.release()

    def _process_data(self, data: Any, worker: int) -> Any:
        if self._has_states:
            made = data.made if type(data) is Opened else data if type(data) is Made else None
            self._position.saw(worker, None if made is None else self._opener.state_of(made))
        if self._tracks:
            self._position.saw_all_but(self._task_info)
        return super()._process_data(data, worker)  # type: ignore[misc]

    def _shutdown_workers(self, *getpid: Callable[[], int]) -> None:
        super()._shutdown_workers(*getpid)  # type: ignore[misc]
        if self._lines is None and self._states is not None:
            self._states.close()


class StreamInlineIter(_StatefulInline, InlineIter):
    """A stream, without workers."""


class StreamWorkersIter(_StatefulWorkers, WorkersIter):
    """A stream, by workers."""


class StatefulInlineIter(_StatefulInline, MapInlineIter):
    """Map-style, without workers."""


class StatefulWorkersIter(_StatefulWorkers, MapWorkersIter):
    """Map-style, by workers."""
