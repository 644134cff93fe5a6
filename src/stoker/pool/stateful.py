"""Datasets and iterators with a state of their own: asked for it, and set back to it, in the process that owns them.

torch's worker loop asks `DatasetKind.create_fetcher` for its fetcher. In a worker of a loader that keeps states this is
`StatefulBeginning.create`: it sets the dataset back, passes by what the training loop has seen, and wraps the fetcher, so
that the report of a batch carries the state after it. Two messages of their own tell the state at the start of an epoch
and at its end.
"""

import copy
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch.utils.data

from stoker.batch import pack
from stoker.errors import ConfigError
from stoker.internals import worker_info
from stoker.internals.names import DatasetKind, create_fetchers_by
from stoker.meter import now
from stoker.pool.filling import one_reader
from stoker.pool.huggingface import loses_its_buffer
from stoker.pool.shards import for_one_epoch
from stoker.pool.start import StreamStart
from stoker.pool.webdatasets import CountedEpochs
from stoker.pool.work import Made, Report
from stoker.pool.worker import Beginning, SlotRoom
from stoker.slots.area import Area
from stoker.slots.messages import Plain
from stoker.slots.outbox import Outbox
from stoker.tensor.leaves import HereCollate
from stoker.tensor.seeding import generators_restored

INLINE_BYTES = 64 << 10
"""Larger states travel through shared memory."""
_TOLD_EVERY_S = 10.0


class AskedStates(NamedTuple):
    """What a dataset and its iterator answered; None for one that has no state."""

    dataset: Any = None
    iterator: Any = None
    is_same: bool = False
    """Whether the dataset is its own iterator. Its state then counts as the iterator's."""


Asks = Callable[[], AskedStates]
"""Asks a dataset and its iterator for their states."""


def is_stateful(thing: object) -> bool:
    """Whether something can be asked for its state, and the state is all that is needed."""
    has_methods = callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
    return has_methods and not loses_its_buffer(thing)


def ask(fetcher: Any, *, is_over: bool = False) -> AskedStates:
    """The state of a fetcher's dataset and of its iterator. At the end of an epoch the iterator's is of no use."""
    dataset: Any = fetcher.dataset
    iterator: Any = getattr(fetcher, "dataset_iter", None)
    if iterator is dataset:
        return AskedStates(None, dataset.state_dict() if is_stateful(dataset) else None, True)
    asked = not is_over and is_stateful(iterator)
    return AskedStates(dataset.state_dict() if is_stateful(dataset) else None, iterator.state_dict() if asked else None)


def asking(fetcher: Any) -> Asks:
    """Asks a fetcher's dataset and iterator again and again: who has a state is looked up once."""
    dataset, iterator = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
    if iterator is dataset or is_stateful(iterator):
        return lambda: ask(fetcher)
    return lambda: AskedStates(dataset.state_dict())


def begin_anew(thing: Any, state: Any) -> None:
    """Set something back to what it was between two epochs, so that its next `iter()` is the next epoch.

    What was at its end has nothing more to give: it is asked, so that it forgets that. All others are set back once more,
    by the state as it was: they may keep what they are given, and change it.
    """
    load(thing, copy.deepcopy(state))
    with nullcontext() if _is_worker_thread() else generators_restored():
        was_at_its_end = not any(True for _ in iter(thing))
    if not was_at_its_end:
        load(thing, state)


def _is_worker_thread() -> bool:
    """Whether the default generators are not this worker's own: other threads draw from them at the same time."""
    return torch.utils.data.get_worker_info() is not None and worker_info.of_process() is None


def load(thing: Any, state: Any) -> None:
    """Give something its state back."""
    if not is_stateful(thing):
        raise ConfigError(
            f"the loader's state holds one of {type(thing).__name__}, which has no state_dict() and load_state_dict() "
            "here: use the dataset that the state was saved with"
        )
    thing.load_state_dict(state)


def restore_dataset(dataset: Any, start: StreamStart) -> None:
    """Set a dataset back, before it is iterated."""
    if start.dataset is None:
        return
    if start.is_before_the_end or isinstance(dataset, CountedEpochs):
        load(dataset, start.dataset)
    elif (start.is_anew or start.has_ended) and isinstance(dataset, torch.utils.data.IterableDataset):
        begin_anew(dataset, start.dataset)
    else:
        load(dataset, start.dataset)


def restore_iterator(fetcher: Any, start: StreamStart, told: Callable[[int, int], None] | None = None) -> None:
    """Set the iterator of a new fetcher back, and pass by what came after its state."""
    if not hasattr(fetcher, "dataset_iter"):
        return
    if start.is_before_the_end:
        _finish_epoch(fetcher, start, told)
        return
    if start.iterator is not None:
        if start.is_anew and fetcher.dataset_iter is fetcher.dataset:
            begin_anew(fetcher.dataset, start.iterator)
            fetcher.dataset_iter = iter(fetcher.dataset)
        else:
            load(fetcher.dataset_iter, start.iterator)
    fetcher.ended = start.has_ended
    if start.since:
        _pass_by(fetcher, start.since, told)


def _finish_epoch(fetcher: Any, start: StreamStart, told: Callable[[int, int], None] | None) -> None:
    if start.dataset is None and start.iterator is None:
        return
    if start.iterator is not None:
        load(fetcher.dataset_iter, start.iterator)
    _pass_by(fetcher, start.since + 1, told)
    fetcher.dataset_iter, fetcher.ended = iter(fetcher.dataset), False


def _pass_by(fetcher: Any, batches: int, told: Callable[[int, int], None] | None) -> None:
    """Take batches from a stream and drop them. Only a `collate_fn` of the user's is called: it may draw random numbers."""
    collate = fetcher.collate_fn
    users = collate.collate_fn
    is_torchs = users is torch.utils.data.default_collate or isinstance(users, HereCollate)
    fetcher.collate_fn = list if is_torchs else users
    if users is torch.utils.data.default_convert:
        fetcher.collate_fn = id
    indices = [None] * collate.batch_size if fetcher.auto_collation else None
    next_word = now() + _TOLD_EVERY_S
    try:
        for number in range(batches):
            try:
                fetcher.fetch(indices)
            except StopIteration:
                fetcher.ended = True
                break
            except Exception as error:
                if _is_of_loading(error):
                    raise
                continue  # the training loop has seen this error
            if told is not None and now() > next_word:
                next_word = now() + _TOLD_EVERY_S
                told(number + 1, batches)
    finally:
        fetcher.collate_fn = collate


def _is_of_loading(error: Exception) -> bool:
    """Whether a stream, some of which load their state with their first item, could not load it."""
    return any(frame.f_code.co_name == "load_state_dict" for frame, _ in traceback.walk_tb(error.__traceback__))


def say_passed(who: str) -> Callable[[int, int], None]:
    """Tell a person how far passing by has come."""

    def say(passed: int, batches: int) -> None:
        sys.stderr.write(
            f"stoker: {who} passes by batches that were seen before the restart, {passed:,} of {batches:,}: the stream has "
            "no state_dict() and load_state_dict() of its own\n"
        )
        sys.stderr.flush()

    return say


class StatefulBeginning(Beginning):
    """Begins a worker of a loader that keeps states: its fetchers are ours."""

    def __init__(self, room: SlotRoom, *, forked: bool, area: Area, starts: list[StreamStart] | None, every: int) -> None:
        super().__init__(room, forked=forked)
        self._area = area
        self._starts = starts
        self._every = every
        self._generation = 0

    def sent_to(self, number: int) -> "StatefulBeginning":
        """A copy for a worker that inherits nothing: it needs no states but its own."""
        starts = (
            None
            if self._starts is None
            else [start if k == number else StreamStart() for k, start in enumerate(self._starts)]
        )
        own = StatefulBeginning(self.room, forked=self.forked, area=self._area, starts=starts, every=self._every)
        own.cores = self.cores
        return own

    def __call__(self, number: int, reports: Any) -> Callable[[Any], None] | None:
        """Prepare this process."""
        self._number, self._reports = number, reports
        self._writer = StateWriter(Outbox(self._area, number))
        create_fetchers_by(self._create)
        return super().__call__(number, reports)

    def _create(self, make: Callable[..., Any], kind: int, dataset: Any, *rest: Any) -> Any:
        self._generation += 1
        start = self._starts[self._number] if self._starts is not None and self._generation == 1 else StreamStart()
        try:
            dataset, start = for_one_epoch(dataset, start)
            restore_dataset(dataset, start)
            fetcher = make(kind, dataset, *rest)
            restore_iterator(fetcher, start, say_passed(f"worker {self._number}"))
        except Exception:
            self._tell(Report.BEGUN, None)  # the error itself takes the place of a batch
            raise
        if not is_stateful(dataset) and not is_stateful(getattr(fetcher, "dataset_iter", None)):
            self._tell(Report.BEGUN, None)
            return fetcher
        return Fetching(fetcher, self._writer, self._tell, self._every if kind == DatasetKind.Iterable else 1)

    def _tell(self, what: str, state: Any) -> None:
        made = Made(0, 0.0, 0.0, None, state=state)
        self._reports.put(((what, self._number, self._generation), Plain(made)))


class Fetching:
    """A fetcher whose batches are reported with the dataset's state after them."""

    def __init__(self, fetcher: Any, writer: "ReportedStates", tell: Callable[[str, Any], None], every: int) -> None:
        self._fetcher, self._writer, self._tell, self._every = fetcher, writer, tell, every
        if isinstance(fetcher.dataset, CountedEpochs):
            self._every = 0
        self._ask = asking(fetcher)
        self._batches = 0
        self._error: Exception | None = None
        self._has_ended = False
        state = None
        try:
            writer.forget()
            state = writer.write(self._ask, has_ended=getattr(fetcher, "ended", False))
        except Exception as error:  # torch's loop does not expect one here: it takes the place of the first batch
            self._error = error
        tell(Report.BEGUN, state)

    def fetch(self, indices: Any) -> Any:
        """Make a batch, and ask for the state after it."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        try:
            made = self._fetcher.fetch(indices)
        except StopIteration:
            if not self._has_ended:  # else the state at the end was an error, which the training loop has got
                self._has_ended = True
                self._tell(Report.ENDED, self._writer.write(self._ask_at_the_end, has_ended=True))
            raise
        self._batches += 1
        if not self._every or self._batches % self._every:
            return made
        state = self._writer.write(self._ask, has_ended=getattr(self._fetcher, "ended", False))
        return type(made)((*made[:-1], state)) if type(made) is Plain else made._replace(state=state)

    def _ask_at_the_end(self) -> AskedStates:
        return ask(self._fetcher, is_over=True)


class ReportedStates(Protocol):
    """Writes states for reports."""

    def forget(self) -> None:
        """Write the next state even if it is like the last one."""

    def write(self, asks: Asks, *, has_ended: bool) -> tuple[Any, ...] | None:
        """A state as plain values, or None where there is no room for it: then nobody is asked."""


class StateWriter:
    """Writes states for a report: nothing new, a few bytes, or where they lie in shared memory.

    There are two slots in which large states lie. While the training process holds both, it gets no further one.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._last = b""
        self._are_large = False

    def forget(self) -> None:
        """Write the next state even if it is like the last one."""
        self._last = b""

    def write(self, asks: Asks, *, has_ended: bool) -> tuple[Any, ...] | None:
        """A state as plain values, or None where there is no room for it: then nobody is asked."""
        asked = None
        if not self._are_large:
            asked = asks()
            content = pickle.dumps(tuple(asked), 5)
            if len(content) <= INLINE_BYTES:
                if content == self._last:
                    return (has_ended,)
                self._last = content
                return has_ended, content
            self._are_large = True
        if not self._outbox.claim():
            return None
        try:
            packed = pack(tuple(asked or asks()), one_reader(), self._outbox)
            place = (self._outbox.worker, *self._outbox.announce())
        finally:
            self._outbox.abandon()
        return has_ended, None, place, packed
