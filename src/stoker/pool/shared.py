"""The pool of a rank that shares: worker processes over lines, and whatever workers of other ranks make for it.

Every work is ordered from an own worker, and offered to all (`slots/offers`). A worker of another rank that makes it sends
the batch over a socket, in memory of its own that this process maps. A batch that comes a second time is dropped.
"""

import os
import pickle
import secrets
import socket
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.host import forks, process
from stoker.host.sockets import check_same_user
from stoker.memory import Memory
from stoker.meter import Meter
from stoker.plan import OFFLOAD_PARTS
from stoker.pool.helping import SharedServing
from stoker.pool.in_turn import ServingInTurn
from stoker.pool.processes import LinePool, LoaderSlots
from stoker.pool.serving import Duty, Result
from stoker.pool.work import Made, Work
from stoker.pool.worker import Opener
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox
from stoker.slots.messages import Frames, marshalled, opened
from stoker.slots.offers import MAY_BE_HELPED, UNKNOWN, Offers, rows_for
from stoker.tensor.caching import Caching

_CHUNK = 1 << 16


class SharedPool(LinePool):
    """Worker processes over lines, helped by those of other ranks."""

    is_to_be_timed = False
    """Whether a relay wants to know what the loop takes if batches are ready."""

    def __init__(
        self,
        duty: Duty,
        caching: Caching,
        context: Any,
        slots: LoaderSlots,
        folder: Path,
        job: str,
        meter: Meter,
        *,
        pins: bool,
        is_relayed: bool = False,
        is_unchanged: Callable[[Any], bool] | None = None,
    ) -> None:
        """Share with ranks of this job, which have entries in the folder. The meter is told of each of their batches. A
        relay of this host (`stoker.remote`), if there is one, is told how long the loop waits, as the meter counts it.

        Without a seed, `is_unchanged` says of a dataset in a worker whether it is as it was before its first batch.
        """
        area = slots.inbox.area
        self._rows = area.rows
        self._meter = meter
        self._counted = meter.batches, meter.samples, meter.wait_s
        self._is_relayed = is_relayed
        self._timed = 0
        self._pins = pins
        self._helpers: dict[int, _Helper] = {}
        """By the rows that their batches seem to lie in: beyond those of own workers."""
        self._next_row = area.rows
        address = f"stoker-{os.getuid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{address}")
        self._listener.listen(128)
        about = {
            "job": job,
            "workers": duty.workers,
            "prefetch": area.prefetch,
            "address": address,
            "pid": process.own()[0],
            "relayed": is_relayed,
        }
        state = MAY_BE_HELPED if is_unchanged is None else UNKNOWN
        self._offers = Offers(folder, about, state, rows_for(duty.workers * area.prefetch))
        serving: Any = partial(SharedServing, own=self._offers.path)
        if is_unchanged is not None:
            serving = partial(ServingInTurn, own=self._offers.path, is_unchanged=is_unchanged)
        _pools.add(self)
        try:
            super().__init__(duty, caching, context, slots, pins=pins, serving=serving)
        except BaseException:
            self._close_helpers()
            raise
        self._offers.name_workers(self.crew.pids)
        self._open_own, self.open = self.open, self._open
        self._drop_own, self.drop = self.drop, self._drop
        self._reports.watch(self._listener.fileno(), self._accept)

    def order(self, worker: int, name: int, work: Work) -> None:
        """Send work to a worker, without waiting, and offer it to all others."""
        content = None
        if work.part is None and work.decision is None:
            plain = work.as_plain()
            content = marshalled((name, tuple(plain))) if plain is not None else _pickled(name, work)
        if content is None:
            self._offers.keep(name)
            super().order(worker, name, work)
            return
        self._offers.offer(name, content)
        self._orders[worker].send(content)
        if self._is_relayed:
            self._exchange()

    def _exchange(self) -> None:
        """Tell a relay how far the loop is, and hear what it has decided."""
        meter, (batches, samples, wait_s) = self._meter, self._counted
        self._offers.tell(meter.batches - batches, meter.samples - samples, int((meter.wait_s - wait_s) * 1e6))
        ratio_ppm, meter.remote_workers, meter.remote_wanted, times, part = self._offers.heard()
        meter.remote_ratio, meter.remote_part = ratio_ppm / 1e6, OFFLOAD_PARTS[part]
        self.is_to_be_timed = times > self._timed

    def time_loop(self, samples_per_s: float) -> None:
        """Tell a relay what the loop takes if batches are ready."""
        self._timed += 1
        self._offers.tell_loop(self._timed, samples_per_s)

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. Raises `queue.Empty` after a time, and when a worker has ended."""
        number, result = self._reports.get(timeout_s)
        self._offers.over(number)
        return number, result

    def pid_of(self, name: int, worker: int) -> int:
        """The pid of the process that makes a work: an own worker, or one of another rank."""
        return self._offers.taken_by(name) or super().pid_of(name, worker)

    @property
    def draws(self) -> bool:
        """Whether a batch was seen to draw, so that no other rank can help."""
        return self._offers.draws

    def _accept(self) -> list[Any]:
        """A worker of another rank comes."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return []
        except OSError:  # too many open files: own workers do without help, and those who wait at the door hear of it
            self._reports.forget(self._listener.fileno())
            self._listener.close()
            return []
        try:
            check_same_user(connection)
        except OSError:
            connection.close()
            return []
        helper = _Helper(connection, self._next_row, self._slots.inbox, pins=self._pins)
        self._helpers[self._next_row] = helper
        self._next_row += 1
        self.helpers += 1
        self._reports.watch(connection.fileno(), partial(self._receive, helper))
        return []

    def _receive(self, helper: "_Helper") -> list[Any]:
        was_remote, reports = helper.is_remote, helper.receive()
        self.helpers += helper.is_remote - was_remote  # one more work ahead: a batch takes longer from another host
        if reports is None:
            self.helpers -= 1 + helper.is_remote
            self._reports.forget(helper.connection.fileno())
            helper.connection.close()
            self._let_go(helper)
        return reports or []

    def _let_go(self, helper: "_Helper") -> None:
        """Give the memory of a worker back that has gone, if all its batches were opened."""
        if helper.has_gone and not helper.unopened:
            del self._helpers[helper.row]
            helper.close()

    def _open(self, made: Made) -> Any:
        if made.place is None or made.place[0] < self._rows:
            return self._open_own(made)
        helper = self._helpers[made.place[0]]
        self._meter.help(*((made.samples, made.place[3]) if helper.is_remote else (0, 0)))
        assert helper.opener is not None
        try:
            return helper.opener.open(made._replace(place=(0, *made.place[1:])))
        finally:
            helper.unopened -= 1
            self._let_go(helper)

    def _drop(self, made: Made) -> None:
        if made.place is None or made.place[0] < self._rows:
            self._drop_own(made)
            return
        helper = self._helpers[made.place[0]]
        assert helper.opener is not None
        helper.opener.drop(made._replace(place=(0, *made.place[1:])))
        helper.unopened -= 1
        self._let_go(helper)

    def close(self) -> None:
        """End the crew. Workers of other ranks that make something for this one notice it when they are done."""
        self._close_helpers()
        super().close()

    def _close_helpers(self) -> None:
        self._offers.close()
        self._listener.close()
        for helper in self._helpers.values():
            helper.close()


class _Helper:
    """A worker of another rank, as this training process sees it."""

    def __init__(self, connection: socket.socket, row: int, own: Inbox, *, pins: bool) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.opener: Opener | None = None
        self.is_remote = False
        """Whether it hands on what workers on other hosts make."""
        self.row = row
        self.unopened = 0
        """How many of its batches have come and were neither opened nor dropped."""
        self._own = own
        self._pins = pins
        self._frames = Frames()

    @property
    def has_gone(self) -> bool:
        """Whether nothing more can come."""
        return self.connection.fileno() < 0

    def close(self) -> None:
        """Hang up, and give back all memory but that of batches in use."""
        self.connection.close()
        if self.opener is not None:
            self.opener.inbox.close()

    def receive(self) -> list[tuple[int, Made]] | None:
        """The batches that have come. None when that worker has gone."""
        try:
            if self.opener is None:
                data, descriptors, _, _ = socket.recv_fds(self.connection, _CHUNK, 1)
            else:
                data, descriptors = self.connection.recv(_CHUNK), []
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        messages = self._frames.feed(data)
        if self.opener is None:
            if not descriptors or not messages:  # both come with the first bytes, or not at all
                return None
            _, prefetch, stride, *rest = opened(messages.pop(0))
            self.is_remote = bool(rest and rest[0])
            self.opener = self._map(descriptors[0], prefetch, stride)
        return [self._report(opened(message)) for message in messages]

    def _map(self, descriptor: int, prefetch: int, stride: int) -> Opener:
        size = os.fstat(descriptor).st_size
        area = Area(1, prefetch, memory=Memory(size, descriptor=descriptor))
        area.stride = stride
        return Opener(Inbox(area, self._own.pins), pins=self._pins)

    def _report(self, values: Any) -> tuple[int, Made]:
        number, *rest = values
        made = Made(*rest)
        assert made.place is not None
        self.unopened += 1
        return number, made._replace(place=(self.row, *made.place[1:]))


def _pickled(name: int, work: Work) -> bytes | None:
    """A work whose indices are arrays, tensors or numbers of NumPy. None if there is anything else among them."""
    ids = work.ids if type(work.ids) is list else [work.ids]
    kinds = {type(one) for one in ids}
    if not all(issubclass(kind, (np.generic, np.ndarray, torch.Tensor)) or kind in (int, str) for kind in kinds):
        return None
    return pickle.dumps((name, work), pickle.HIGHEST_PROTOCOL)  # not torch's way, which shares memory with one reader


_pools: "weakref.WeakSet[SharedPool]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child is not this rank: it must not keep its sockets open."""
    for pool in list(_pools):
        pool._listener.close()
        for helper in pool._helpers.values():
            helper.connection.close()


forks.register(forks.Stage.HOLDINGS, after_in_child=_after_fork_in_child)
