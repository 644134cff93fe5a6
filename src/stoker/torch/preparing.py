"""The workers of a group's member: they prepare whatever the group needs next, not what their own job asks for.

Samples are collated straight to where the group stages them; or, if there is no room at once that is large enough, in
memory of the worker's own, and copied there. A tail says how to read what is staged. An error of the user's dataset is
staged in its place, and raised in every job that gets there.
"""

import contextlib
import hashlib
import marshal
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from stoker.errors import ConfigError
from stoker.host.parent import end_with_parent
from stoker.memory import Bytes
from stoker.meter import Counts
from stoker.prep.batch import NoLayout, build, lay_out, pack, unpack
from stoker.stage.door import leave
from stoker.stage.outbox import NoRoom, Outbox
from stoker.stage.records import NOWHERE, Draw, Place
from stoker.stage.staging import Address, StagedArea, Staging
from stoker.torch.caching import Caching
from stoker.torch.leaves import HereCollate, TensorLeaves, collated, leaf_over, leaves_in, plain_reducers
from stoker.torch.progress import Batch, Route, listed
from stoker.torch.seeding import Positions, generators_restored
from stoker.torch.worker import leave_inherited
from stoker.torch.worker_info import shown

_TAIL = 8
_KEPT_ORDERS = 2


class Told(NamedTuple):
    """What the tail of a staged batch says."""

    layout: Any
    pickled: Any
    samples: int
    prep_s: float
    counts: Counts | None
    failure: tuple[bytes, str] | None


class Preparing:
    """How batches are made, in any process of a member."""

    def __init__(self, loader: Any, route: Route, *, threads: bool) -> None:
        # What never draws pays for seeding, too: to find out, a sample would have to be prepared twice.
        self._positions = Positions(loader.dataset, loader.seed, threads=threads, draws=True)
        self._route = route
        self._collate_fn = loader.collate_fn
        self._batched = loader._auto_collation
        self.caching: Caching = loader.caching
        self._here = HereCollate()
        self._own = threading.local()
        self._orders: dict[int, Sequence[Batch]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None, "_own": None, "_orders": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _here=HereCollate(), _own=threading.local())

    def answer(self, asked: Place | Draw, staging: Staging) -> None:
        """Do what the group needs."""
        if isinstance(asked, Draw):
            self._agree(asked.epoch, staging)
            return
        try:
            self._agree(asked[0], staging)
            try:
                self._make(asked, staging)
            except Exception as error:  # of the user's, or the batch is too large
                staging.publish(asked, [_failed(error)])
        except BaseException:
            # Whose sampler does not agree, or who is interrupted, has to go; it is nothing to the others.
            if os.getpid() == staging.process[0]:  # and not a child that the dataset forked, and that ends
                staging.let_go(asked)
            raise

    def _agree(self, epoch: int, staging: Staging) -> None:
        """Find out what an epoch consists of, and that all agree."""
        if epoch in self._orders:
            return
        with generators_restored():
            order = self._route.at(epoch)
        digest = _digest(order)
        if staging.drawn(epoch, len(order), digest) != digest:
            raise ConfigError(
                f"the sampler of this job gives other samples in epoch {epoch} than the sampler of another job of the "
                "group. In a group a sampler must draw from torch's default generator, which is set by the group's seed."
            )
        self._orders = {**{kept: self._orders[kept] for kept in sorted(self._orders)[1 - _KEPT_ORDERS :]}, epoch: order}

    def _make(self, place: Place, staging: Staging) -> None:
        epoch, number = place
        first, step, ids = self._orders[epoch][number]
        began, rest = time.monotonic(), _Rest()
        samples = self._positions.make(epoch, first, step, listed(ids), list)
        batch = _NOT_COLLATED
        if self._collate_fn is not torch.utils.data.default_collate:
            batch = self._collate_fn(samples if self._batched else samples[0])
        made = _Made(samples, batch, began, self.caching.take())
        asleep = rest.part()
        if self._stage_at_once(place, staging, made, asleep):
            return
        for here in (self._here, HereCollate()):
            with here.claimed() as outbox:
                if outbox is not None:
                    length = made.lay_out(outbox, here.collate)
                    staging.publish(place, [outbox.content()[:length]], asleep)
                    return
            # User code has kept all that was collated here: other memory, then.

    def _stage_at_once(self, place: Place, staging: Staging, made: "_Made", asleep: float) -> bool:
        """Collate straight to where the batch is staged, if it fits into what can be had at once."""
        own = self._own
        if not hasattr(own, "outbox"):
            own.outbox = Outbox(StagedArea(staging.memory), 0)
            own.leaves = leaves_in(own.outbox, alike_everywhere=True)
        outbox: Outbox = own.outbox
        slot, outbox.limit = staging.reserve(place)
        if slot == NOWHERE:
            return False
        is_staged = False
        try:
            with contextlib.suppress(NoRoom):
                if outbox.join(slot):
                    length = made.lay_out(outbox, partial(collated, leaves=own.leaves))
                    is_staged = True
        finally:
            outbox.abandon()
            if not is_staged:
                staging.give_back(place, slot)
        if is_staged and not staging.finish(place, slot, length, asleep):
            staging.let_go(place, slot)
        return is_staged


class _Rest:
    """How much of some time this thread sleeps. Waiting for a processor is not sleeping."""

    def __init__(self) -> None:
        self._began, self._busy = time.monotonic(), _busy_s()

    def part(self) -> float:
        """Of the time until now."""
        span_s = time.monotonic() - self._began
        return 1.0 - (_busy_s() - self._busy) / span_s if span_s > 0 and self._busy else 0.0


def _busy_s() -> float:
    """Seconds that this thread has run, or was ready to; 0 where the kernel does not say."""
    try:
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        run_ns, wait_ns, _ = os.read(descriptor, 100).split()
        return (int(run_ns) + int(wait_ns)) / 1e9
    finally:
        os.close(descriptor)


_NOT_COLLATED = object()


class _Made(NamedTuple):
    """Samples that are prepared, on their way to where they are staged."""

    samples: list[Any]
    batch: Any
    began: float
    counts: Counts | None

    def lay_out(self, outbox: Outbox, collate: Callable[[Any], Any]) -> int:
        """Put the batch and its tail into the slot that is claimed. How many bytes that is."""
        batch = collate(self.samples) if self.batch is _NOT_COLLATED else self.batch
        layout = pickled = None
        used = outbox.used
        try:
            layout = lay_out(batch, TensorLeaves(outbox))
        except NoLayout:
            outbox.rewind(used)
            pickled = pack(batch, plain_reducers(), outbox)
        tail = _tail(Told(layout, pickled, len(self.samples), time.monotonic() - self.began, self.counts, None))
        start, room = outbox.room(len(tail))
        room[:] = tail
        return start + len(tail)


def told_of(content: Bytes) -> Told:
    """What a staged batch says of itself."""
    length = int.from_bytes(content[-_TAIL:].tobytes(), "little")
    return Told(*marshal.loads(content[-_TAIL - length : -_TAIL].tobytes()))


def opened(told: Told, content: Bytes) -> Any:
    """The batch, over `content`, which it keeps alive."""
    if told.failure is not None:
        _raise(*told.failure)
    if told.pickled is not None:
        stream, pieces = told.pickled
        return unpack(stream, pieces, content)
    return build(told.layout, leaf_over(content))


def _tail(told: Told) -> Bytes:
    content = marshal.dumps(tuple(told))
    return np.frombuffer(content + len(content).to_bytes(_TAIL, "little"), np.uint8)


def _failed(error: Exception) -> Bytes:
    return _tail(Told(None, None, 0, 0.0, None, _failure(error)))


def _failure(error: Exception) -> tuple[bytes, str]:
    wrapper = ExceptionWrapper(
        (type(error), error, error.__traceback__), f"in a worker of pid {os.getppid()}, pid {os.getpid()}"
    )
    try:
        return pickle.dumps(wrapper), wrapper.exc_msg
    except Exception:
        return b"", wrapper.exc_msg


def _raise(content: bytes, message: str) -> None:
    try:
        wrapper = pickle.loads(content)
    except Exception:
        raise RuntimeError(message) from None
    wrapper.reraise()


def _digest(order: Sequence[Batch]) -> str:
    ids = getattr(order, "ids", None)
    if ids is not None:
        return hashlib.blake2b(ids, digest_size=8).hexdigest()
    return hashlib.blake2b(repr([list(batch.ids) for batch in order]).encode(), digest_size=8).hexdigest()


class Work:
    """What a worker does, from its start to its end. Travels to its process."""

    def __init__(self, address: Address, preparing: Preparing, loader: Any, failures: Any, *, forked: bool) -> None:
        self._address = address
        self._forked = forked
        self._preparing = preparing
        self._dataset = loader.dataset
        self._init_fn = loader.worker_init_fn
        self._workers = loader.num_workers
        self._seed = loader.seed
        self._failures = failures

    def _info(self, number: int) -> Any:
        seed = self._seed + number
        return torch_worker.WorkerInfo(id=number, num_workers=self._workers, seed=seed, dataset=self._dataset)

    def in_thread(self, number: int, staging: Staging, stopped: Callable[[], bool]) -> None:
        """Work in a thread of the training process, until it is stopped."""
        try:
            with self._preparing.caching.active(), shown(self._info(number)):
                self._work(number, staging, lambda: not stopped())
        except Exception as error:
            if not stopped():
                self._failures.put(_failure(error))

    def _work(self, number: int, staging: Staging, goes_on: Callable[[], bool]) -> None:
        if self._init_fn is not None:
            self._init_fn(number)
        with staging.table.change() as slots:
            if staging.member not in slots.members:
                return
            slots.add_worker(staging.member, staging.process)
        while (asked := staging.next_work(goes_on)) is not None:
            self._preparing.answer(asked, staging)

    def __call__(self, number: int) -> None:
        """Work in a process, until the member has gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process has it too, and says so
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
        if self._forked:
            leave_inherited()
        torch.set_num_threads(1)
        torch_worker._worker_info = self._info(number)
        try:
            staging = Staging(self._address)
        except OSError:
            return  # the training process has gone
        end_with_parent(lambda: _take_leave(staging))
        try:
            self._preparing.caching.begin()
            self._work(number, staging, _always)
        except Exception as error:
            self._failures.put(_failure(error))
            raise SystemExit(1) from None


def _always() -> bool:
    return True


def _take_leave(staging: Staging) -> None:
    """The training process is dead: its workers see to it that nothing is left behind."""
    with contextlib.suppress(Exception):
        leave(staging)
