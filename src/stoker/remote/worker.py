"""A worker on another host: it dials the relay of a trainer's host, learns its duty, and makes the batches it is given.

One thread makes batches, this process's first. A thread for each connection waits for works and sends batches, so that one
is sent while the next is made. A process serves one relay: what a duty leaves behind is not for the next one.
"""

import contextlib
import json
import math
import queue
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

from stoker import checksum
from stoker.errors import StokerError
from stoker.extras import OFFLOAD
from stoker.memory import keep_freed
from stoker.meter import Counts
from stoker.pool.filling import Reducers
from stoker.pool.maker import FetchMaker, Maker
from stoker.pool.serving import Duty
from stoker.pool.traces import Traces
from stoker.pool.work import COLLATE, NOT_COMMON, Made, Part, Work, work_of
from stoker.pool.worker import SlotRoom
from stoker.remote import parcel, said
from stoker.remote.far import FarReads
from stoker.remote.parts import PARTS, PREPARE, SAMPLES
from stoker.remote.said import Word
from stoker.remote.seats import BEGINNING_S
from stoker.remote.versions import kind, versions
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox
from stoker.slots.messages import opened
from stoker.tensor.leaves import plain_reducers
from stoker.wire.addresses import Address
from stoker.wire.channel import Channel
from stoker.wire.frames import FrameError
from stoker.wire.handshake import fresh_name
from stoker.wire.link import connect

CONNECTIONS = 2
_PATIENCE_S = 60.0
_CONNECT_S = 5.0
_AGAIN_S, _MOST_AGAIN_S = 0.1, 2.0


class WorkerRefusedError(StokerError):
    """The trainer's host does not want this worker."""


class _NoCache:
    """What a room asks for where there is no cache of the loader's."""

    def take(self) -> Counts | None:
        """Nothing is counted."""
        return None


class RemoteRoom(SlotRoom):
    """Slots of this process. They are opened here, and sent."""

    reducers: Reducers = staticmethod(plain_reducers)

    def __init__(self) -> None:
        super().__init__(Area(1, CONNECTIONS), _NoCache(), alike_everywhere=True)  # type: ignore[arg-type]
        self.begin(0)
        self.inbox = Inbox(self.area)


class _Given(NamedTuple):
    """A work, and where its batch has to go."""

    work: Work
    part: str
    channel: Channel
    results: "queue.SimpleQueue[Made | bytes]"
    """Takes what was made, or why nothing was (see `said.FAILED`)."""


class RemoteWorker:
    """Serves one relay until it goes."""

    def __init__(self, address: Address, secret: bytes) -> None:
        self._address, self._secret = address, secret
        self._works: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._name = fresh_name()
        self._has_said = False
        self._began_ns = time.time_ns()

    def run(self) -> None:
        """Work until the relay has gone. Raises OSError if it is not there, RefusedError and ConfigError."""
        first = self._dial()
        duty, far = self._join(first)
        duty.become_worker(0)
        maker = duty.begin_or_raise(0)
        room = RemoteRoom()
        traces = Traces(duty.dataset) if isinstance(maker, FetchMaker) else None
        channels = [first]
        for _ in range(CONNECTIONS - 1):
            with contextlib.suppress(OSError):
                another = self._dial()
                self._join(another, has_duty=True)
                channels.append(another)
        for channel in channels:
            said.send(channel, Word.READY)
            channel.stream.deadline = None
        threads = [
            threading.Thread(target=self._serve, args=(channel, room), name="stoker-remote", daemon=True)
            for channel in channels
        ]
        for thread in threads:
            thread.start()
        under_way = len(threads)
        while under_way:
            given = self._works.get()
            if given is None:
                under_way -= 1
                continue
            try:
                given.results.put(_make_the_same(maker, room, given, far, traces))
            except Exception:  # an error of the user's dataset: if it is one there, too, the trainer's own workers raise it
                self._say(f"what cannot be made here is made on the trainer's host: {traceback.format_exc().rstrip()}")
                given.results.put(b"")
        for thread in threads:
            thread.join()  # one that is in torch while Python ends would abort this process

    def _say(self, what: str) -> None:
        """Say something once."""
        if not self._has_said:
            self._has_said = True
            print(f"stoker: {what}", file=sys.stderr, flush=True)

    def _dial(self) -> Channel:
        return connect(self._address, self._secret, self._name, time.monotonic() + _CONNECT_S, _PATIENCE_S)

    def _join(self, channel: Channel, *, has_duty: bool = False) -> Any:
        channel.stream.deadline = time.monotonic() + BEGINNING_S
        said.send(channel, Word.JOIN, json.dumps({"versions": versions(), "has_duty": has_duty, "kind": kind()}).encode())
        frame = said.receive(channel, Word.DUTY, Word.REFUSED)
        if frame is None:
            raise ConnectionResetError("the trainer's host has gone")
        if frame.header.kind == Word.REFUSED:
            raise WorkerRefusedError(f"{self._address[0]}:{self._address[1]} refuses this worker: {frame.body.decode()}")
        content = bytearray(frame.header.payload_bytes)
        channel.fill(memoryview(content))
        if said.digest(content) != frame.body:
            raise FrameError("the duty was damaged on its way")
        return None if has_duty else unpickled(bytes(content), self._began_ns)

    def _serve(self, channel: Channel, room: RemoteRoom) -> None:
        results: queue.SimpleQueue[Made | bytes] = queue.SimpleQueue()
        try:
            while (frame := said.receive(channel, Word.WORK)) is not None:
                number, content = said.unpack_work(frame)
                work = opened(content)[1]
                work = work if type(work) is Work else work_of(work)
                self._works.put(_Given(work, PARTS[number], channel, results))
                made = results.get()
                if isinstance(made, bytes):
                    said.send(channel, Word.FAILED, made)
                elif made.place is None or not said.fits(made.place[3]):
                    if made.place is not None:
                        self._say("batches are too long to be sent, and are made on the trainer's host")
                        room.inbox.free(made.place[:2])
                    said.send(channel, Word.FAILED)
                else:
                    _send(channel, made, room.inbox)
        except (OSError, FrameError):
            pass  # the trainer's host has gone, or has given this work to another
        finally:
            channel.stream.end()
            self._works.put(None)


def _make_the_same(maker: Maker, room: RemoteRoom, given: _Given, far: FarReads, traces: Traces | None) -> Made | bytes:
    """Make a work, if it is the same wherever it is made: with a seed, or if it leaves no traces."""
    if traces is None:
        return _make(maker, room, given, far)
    try:
        made = _make(maker, room, given, far)
        if not traces.were_left():
            return made
        if made.place is not None:
            room.inbox.free(made.place[:2])
        return said.DRAWS
    finally:
        traces.remove()


def _make(maker: Maker, room: RemoteRoom, given: _Given, far: FarReads) -> Made:
    """Make a work, or the part of it that is to be made here."""
    work = given.work
    if given.part == SAMPLES:  # as where several workers prepare a batch, but by one
        return maker.make(work._replace(part=Part(NOT_COMMON, 0, len(work.indices))), room)._replace(rest=COLLATE)
    if given.part == PREPARE:
        with far.over(given.channel):  # its thread waits for this work
            return maker.make(work, room)
    return maker.make(work, room)


def _send(channel: Channel, made: Made, inbox: Inbox) -> None:
    assert made.place is not None
    row, number, length, used = made.place
    memory, _ = inbox.open((row, number), length, used)
    payload = memoryview(memory)[:used]  # type: ignore[arg-type]
    is_pickled = made.pickled is not None
    fields = tuple(made._replace(place=None, counts=None))
    said.send(channel, Word.MADE, said.pack_made(fields, payload, is_pickled=is_pickled), payload)


def unpickled(content: bytes, began_ns: int) -> tuple[Duty, FarReads]:
    """The duty of a trainer that knows the secret, in surroundings like its own, and its files. Raises RefusedError."""
    OFFLOAD.check()
    import cloudpickle

    found = parcel.unpack(content)
    why = parcel.settle(found)
    if why:
        raise WorkerRefusedError(f"batches could differ from those of the trainer's host: {why}")
    try:
        return cloudpickle.loads(found.duty), FarReads(found.roots, found.folder, began_ns)
    except Exception as error:  # whatever the user's modules raise
        raise WorkerRefusedError(f"the dataset cannot be used on this host: {type(error).__name__}: {error}") from error


def main(address: Address, secret: bytes, patience_s: float = math.inf) -> None:
    """Wait for a relay at an address, and serve it until it goes. Raises RefusedError and ConfigError."""
    keep_freed()
    checksum.load()
    pause_s, began = _AGAIN_S, time.monotonic()
    while True:
        try:
            RemoteWorker(address, secret).run()
            return
        except (OSError, FrameError) as error:  # nobody is there yet
            if time.monotonic() - began > patience_s:
                raise WorkerRefusedError(f"{address[0]}:{address[1]} cannot be reached from this host: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_AGAIN_S)
