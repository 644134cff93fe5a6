"""The exchange of a group: its table says which batch is needed next, by any job. Batches are staged for all jobs.

Samples are collated straight into the group's memory. If there is not enough room there at once, they are collated in
memory of this process, and copied later. A tail says how to read a staged batch. An error of the user's dataset is staged
in place of its batch, and raised in every job that gets there.
"""

import contextlib
import hashlib
import marshal
import os
import pickle
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import ConfigError
from stoker.group.answers import Draw, Task
from stoker.group.records import NOWHERE, Point
from stoker.group.staging import GroupStaging, StagedArea
from stoker.internals.names import ExceptionWrapper
from stoker.memory import ByteArray
from stoker.meter import now
from stoker.pool.filling import fill, read
from stoker.pool.serving import Result
from stoker.pool.work import NOT_COMMON, Made, Work
from stoker.slots.outbox import NoRoom, Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import HereCollate, collated, leaves_in, plain_reducers
from stoker.tensor.seeding import generators_restored

_TAIL = 8
_KEPT_ORDERS = 2

OrderedBatch = tuple[int, int, Any]
"""Where its positions begin, how far they are apart, and its indices."""


class Samples(list[Any]):
    """Samples that are collated once it is known where the batch goes."""


class Orders:
    """The batches of a group's epochs, as far as this process needed them."""

    def __init__(self, at: Callable[[int], Sequence[OrderedBatch]]) -> None:
        self._at = at
        """The batches of an epoch, as this process finds them."""
        self._known: dict[int, Sequence[OrderedBatch]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def agree(self, epoch: int, staging: GroupStaging) -> Sequence[OrderedBatch]:
        """The batches of an epoch. Raises if the jobs do not agree on them."""
        if epoch in self._known:
            return self._known[epoch]
        with generators_restored():
            order = self._at(epoch)
        digest = _digest(order)
        if staging.draw(epoch, len(order), digest) != digest:
            raise ConfigError(
                f"the sampler of this job gives other samples in epoch {epoch} than the sampler of another job of the "
                "group. In a group a sampler must draw from torch's default generator, which is set by the group's seed."
            )
        self._known = {**{kept: self._known[kept] for kept in sorted(self._known)[1 - _KEPT_ORDERS :]}, epoch: order}
        return order


class TableExchange:
    """Where a worker of a group gets its work, and the room for what it makes; in one thread."""

    outbox: Outbox | None = None  # samples are not put into rows: there is no slot before they are prepared

    def __init__(self, staging: GroupStaging, orders: Orders, caching: Caching, goes_on: Callable[[], bool]) -> None:
        self._staging = staging
        self._orders = orders
        self._caching = caching
        self._goes_on = goes_on
        self._point: Point = (NOWHERE, NOWHERE)
        self._staged = Outbox(StagedArea(staging.memory), 0)
        self._leaves = leaves_in(self._staged, alike_everywhere=True)
        self._here = HereCollate()

    def next(self) -> tuple[Point, Work] | None:
        """The work that the group needs next; None when this member leaves or has gone."""
        while (task := self._staging.next_task(self._goes_on)) is not None:
            given = self.work(task)
            if given is not None:
                return given
        return None

    def work(self, task: Task) -> tuple[Point, Work] | None:
        """The work of a task that this process has claimed. None if the task was only to say how long an epoch is."""
        if isinstance(task, Draw):
            self._orders.agree(task.epoch, self._staging)
            return None
        epoch, step = self._point = task.point
        try:
            return task.point, Work(epoch, *self._orders.agree(epoch, self._staging)[step])
        except BaseException:
            # If this member's sampler disagrees, or it is interrupted, it leaves. The others prepare the batch.
            self.give_up(task.point)
            raise

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Make a batch in the group's memory, or in memory of this process if there is no room."""
        began, rest = now(), _Rest()
        content = make()
        asleep = rest.part()
        ended = now()
        made = Made(samples, ended, ended - began, self._caching.take())
        return self._stage_at_once(content, made, asleep) or self._stage_later(content, made, asleep)

    def _stage_at_once(self, content: Any, made: Made, asleep: float) -> Made | None:
        """Collate straight into the group's memory, if there is room for the batch at once."""
        staging, outbox, point = self._staging, self._staged, self._point
        slot = staging.reserve(point)
        if slot is None:
            return None
        outbox.limit = slot.size
        is_staged = False
        try:
            with contextlib.suppress(NoRoom):
                if outbox.join(slot.number):
                    length = _lay_out(content, made, outbox, partial(collated, leaves=self._leaves))
                    is_staged = True
        finally:
            outbox.abandon()
            if not is_staged:
                staging.give_back(point, slot.number)
        if not is_staged:
            return None
        if not staging.finish(point, slot.number, length, asleep):
            staging.let_go(point, slot.number)
        return made

    def _stage_later(self, content: Any, made: Made, asleep: float) -> Made:
        for here in (self._here, HereCollate()):
            with here.claimed() as outbox:
                if outbox is not None:
                    length = _lay_out(content, made, outbox, here.collate)
                    self._staging.publish(self._point, [outbox.content()[:length]], asleep)
                    return made
            # User code has kept every batch that was collated here, so new memory is needed.
        raise AssertionError("new memory is free")

    def publish(self, name: Point, result: Result) -> None:
        """Stage an error. A batch is staged already."""
        if not isinstance(result, Made):
            self._staging.publish(name, [_tail(Made(0, 0.0, 0.0, None), failure=portable(result))])

    def give_up(self, name: Point) -> None:
        """Give up the claim, so that another worker does the work."""
        if os.getpid() == self._staging.process[0]:  # and not a child that the dataset forked, and that ends
            self._staging.let_go(name)


class _Rest:
    """Measures which part of a time this thread sleeps. Waiting for a processor is not sleeping."""

    def __init__(self) -> None:
        self._began, self._busy = time.monotonic(), _busy_s()

    def part(self) -> float:
        """The part of the time since the start that this thread has slept."""
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


def _lay_out(content: Any, made: Made, outbox: Outbox, collate: Callable[[Any], Any]) -> int:
    """Put a batch and its tail into the claimed slot. Returns how many bytes they take."""
    batch = collate(list(content)) if type(content) is Samples else content
    layout, pickled = fill(batch, outbox, plain_reducers)
    tail = _tail(made._replace(layout=layout, pickled=pickled))
    start, room = outbox.room(len(tail))
    room[:] = tail
    return start + len(tail)


Portable = tuple[bytes, str]
"""An error of the user's, pickled, and its message for processes that cannot unpickle it."""


class Staged(NamedTuple):
    """A batch that was staged, in memory of the process that reads it."""

    made: Made
    failure: Portable | None
    content: ByteArray

    def open(self) -> Any:
        """The batch, over its content, which it keeps alive."""
        if self.failure is not None:
            raise_portable(self.failure)
        return read(self.made.layout, self.made.pickled, self.content)


def staged(content: ByteArray) -> Staged:
    """Read the tail of a staged batch."""
    length = int.from_bytes(content[-_TAIL:].tobytes(), "little")
    made, failure = marshal.loads(content[-_TAIL - length : -_TAIL].tobytes())
    return Staged(Made(*made), failure, content)


def _tail(made: Made, failure: Portable | None = None) -> ByteArray:
    content = marshal.dumps((tuple(made), failure))
    return np.frombuffer(content + len(content).to_bytes(_TAIL, "little"), np.uint8)


def portable(wrapper: ExceptionWrapper) -> Portable:
    """Turn an error into bytes for another process."""
    try:
        return pickle.dumps(wrapper), wrapper.exc_msg
    except Exception:
        return b"", wrapper.exc_msg


def raise_portable(failure: Portable) -> None:
    """Raise an error that `portable` has written."""
    content, message = failure
    try:
        wrapper = pickle.loads(content)
    except Exception:
        raise RuntimeError(message) from None
    wrapper.reraise()


def _digest(order: Sequence[OrderedBatch]) -> str:
    ids = getattr(order, "ids", None)
    if ids is not None:
        return hashlib.blake2b(ids, digest_size=8).hexdigest()
    return hashlib.blake2b(repr([list(ids) for _, _, ids in order]).encode(), digest_size=8).hexdigest()
