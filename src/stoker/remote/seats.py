"""A seat: one connection of a remote worker, as the relay serves it. A seat has one work at a time.

A work that is not made in time goes back to the trainer's own workers. That says nothing about the worker: if its batch
comes after all, it is dropped. A seat whose worker says nothing for long ends, and the worker may take another one.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from stoker.errors import ResourceError
from stoker.memory import Bytes
from stoker.meter import now
from stoker.remote import said
from stoker.remote.parts import PARTS, PREPARE, Parts
from stoker.remote.ranks import Delivery, Rank
from stoker.remote.said import Word
from stoker.remote.versions import difference
from stoker.slots.offers import DRAWS
from stoker.wire.channel import Channel
from stoker.wire.frames import Frame, FrameError

BEGINNING_S = 120.0
"""Within this a worker imports what the duty needs."""
_SILENT_S, _SILENT_BATCHES = 5.0, 20
_LATE_S, _LATE_BATCHES = 0.2, 4
_FIRST_LATE_S = 10.0


class Task(NamedTuple):
    """A work of a rank."""

    rank: Rank
    number: int
    content: bytes


class Fields(NamedTuple):
    """Where in a report its fields are (`pool.work.Made`)."""

    finished: int
    counts: int
    place: int
    pickled: int
    total: int


class BatchPace:
    """How long a batch takes from the relay to the relay, as all seats see it; 0 before the first."""

    def __init__(self) -> None:
        self.batch_s = 0.0

    def took(self, seconds: float) -> None:
        """A batch has come."""
        self.batch_s = seconds if not self.batch_s else self.batch_s + (seconds - self.batch_s) / 8


class RemoteSeat:
    """One connection. `wait` returns a task, or None at the end; `delivered` is told of each that a rank is sent."""

    def __init__(
        self,
        channel: Channel,
        fields: Fields,
        pace: BatchPace,
        wait: Callable[["RemoteSeat"], Task | None],
        delivered: Callable[[Task], None],
        parts: Parts | None = None,
    ) -> None:
        self._channel, self._fields, self._pace, self._wait, self._delivered = channel, fields, pace, wait, delivered
        self._parts = parts or Parts()
        self._deliveries: dict[str, Delivery] = {}
        self.given = threading.Event()
        self.task: Task | None = None
        self.part = ""
        """What is done there of that work, or of the one before."""
        self.began = 0.0
        self.made = 0
        self.worker = channel.name
        """Whose connection it is."""
        self.kind = ""
        """On what that worker runs, in words."""
        self.is_ready = False
        self._busy_s = 0.0

    def is_late(self) -> bool:
        """Whether its work takes much longer than others took."""
        pace_s = self._pace.batch_s
        return self.task is not None and now() - self.began > (
            _LATE_S + _LATE_BATCHES * pace_s if pace_s else _FIRST_LATE_S
        )

    def busy_s(self, at: float) -> float:
        """How long it has had works so far."""
        return self._busy_s + (at - self.began if self.task is not None else 0.0)

    def run(self, versions: dict[str, str], duty: Bytes) -> None:
        """Serve the worker until it goes, or the relay ends. Raises FrameError and OSError."""
        joined = said.receive(self._channel, Word.JOIN)
        if joined is None:
            return
        there, has_duty, self.kind = _introduction(joined)
        why = difference(versions, there)
        if why:
            said.send(self._channel, Word.REFUSED, why.encode())
            return
        parcel = b"" if has_duty else duty
        said.send(self._channel, Word.DUTY, said.digest(parcel), parcel)
        self._channel.stream.deadline = now() + BEGINNING_S
        if said.receive(self._channel, Word.READY) is None:
            return
        self.is_ready = True
        try:
            while (task := self._wait(self)) is not None:
                try:
                    self._do(task)
                except BaseException:
                    task.rank.works.give_back(task.number)
                    raise
                finally:
                    self._busy_s, self.task = self.busy_s(now()), None
        finally:
            for delivery in self._deliveries.values():
                delivery.close()

    def _do(self, task: Task) -> None:
        limit_s = max(_SILENT_S, _SILENT_BATCHES * self._pace.batch_s) if self.made else BEGINNING_S
        self._channel.stream.deadline = now() + limit_s
        self.part = part = self._parts.now
        said.send(self._channel, Word.WORK, said.pack_work(PARTS.index(part), task.content))
        frame, files = self._answer_until_made(part)
        is_made = frame.header.kind == Word.MADE
        self._parts.note(part, files, frame.header.payload_bytes if is_made else None)
        if not is_made:
            if frame.body == said.DRAWS:
                task.rank.works.state = DRAWS
            task.rank.works.give_back(task.number)
            return
        is_delivered = self._receive(task, frame)
        self._pace.took(now() - self.began)
        self.made += is_delivered

    def _answer_until_made(self, part: str) -> tuple[Frame, int]:
        """What the worker says of its work, and how many files it was given for it before."""
        words, files = (Word.MADE, Word.FAILED, *((Word.OPEN,) if part == PREPARE else ())), 0
        while (frame := said.receive(self._channel, *words)) is not None:
            if frame.header.kind != Word.OPEN:
                return frame, files
            files += self._parts.files.answer(self._channel, frame)
        raise ConnectionResetError("the remote worker has gone")

    def _receive(self, task: Task, frame: Frame) -> bool:
        total, made = said.unpack_made(frame)
        if len(made) != self._fields.total:
            raise FrameError("not what was made")
        size = frame.header.payload_bytes
        delivery = self._delivery(task.rank)
        room = None
        if delivery is not None:
            with contextlib.suppress(ResourceError):  # there is no memory for it
                room = delivery.room(max(1, size))
        memory = memoryview(bytearray(size)) if room is None else memoryview(room)[:size]  # type: ignore[arg-type]
        try:
            self._channel.fill(memory)
            if not said.is_whole(memory, total, is_pickled=made[self._fields.pickled] is not None):
                raise FrameError("a batch was damaged on its way")
            if delivery is None or room is None:
                task.rank.works.give_back(task.number)
                return False
            del memory, room
            self._delivered(task)
            try:
                delivery.deliver(task.number, self._settled(made), self._fields.place)
            except OSError:  # the rank has gone, or takes no help any more
                self._deliveries.pop(task.rank.address).close()
                task.rank.works.give_back(task.number)
                return False
            return True
        finally:
            if delivery is not None:
                delivery.abandon()

    def _settled(self, made: tuple[Any, ...]) -> tuple[Any, ...]:
        """The report with what only this host can say: its clock, and no counts of another host's cache."""
        fields = list(made)
        fields[self._fields.finished], fields[self._fields.counts] = now(), None
        return tuple(fields)

    def _delivery(self, rank: Rank) -> Delivery | None:
        found = self._deliveries.get(rank.address)
        if found is None:
            for address, other in list(self._deliveries.items()):
                if other.rank.has_gone:
                    self._deliveries.pop(address).close()
            try:
                found = self._deliveries[rank.address] = Delivery(rank)
            except OSError:
                return None
        return found


def _introduction(frame: Frame) -> tuple[dict[str, str], bool, str]:
    """What a worker runs with, whether it has the duty from another connection, and on what kind of host it is."""
    try:
        found = json.loads(frame.body)
        versions = {str(name): str(version) for name, version in found["versions"].items()}
        return versions, bool(found["has_duty"]), str(found["kind"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FrameError("a worker does not say what it runs with") from error
