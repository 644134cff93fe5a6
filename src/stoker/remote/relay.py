"""The relay: a process on the trainer's host that hands works of its ranks to remote workers, and takes their batches.

Works are taken where a remote worker is free, all of the rank's own workers are busy, and the part of its works that may
go away is not reached. Of the works that wait the last is taken: it is needed last. So the ratio settles by itself where it
is not limited: own workers are never idle for want of work, and remote ones make what is left. There is no torch here.

    python -m stoker.remote.relay          (with a document on standard input; ends when that is closed)
"""

import contextlib
import json
import os
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from stoker.errors import ConfigError
from stoker.host import process
from stoker.meter import now
from stoker.remote.ranks import Rank, Ranks
from stoker.remote.seats import Fields, Pace, Seat, Task
from stoker.slots import offers
from stoker.wire.channel import Channel
from stoker.wire.reception import Reception
from stoker.wire.secret import shared_secret

_LOOK_FOR_RANKS_S = 0.5
_LOOKS_PER_BATCH = 20
_LEAST_APART_S, _MOST_APART_S = 0.0005, 0.01
_UNSEEN_S = 2.0
"""A batch that its rank has not seen for so long is left to own workers, too: the rank may take no help any more."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a relay is told when it is started. The pickled duty follows it."""

    host: str
    port: int
    folder: str
    job: str
    ratio: float
    versions: dict[str, str]
    fields: tuple[int, ...]
    duty_bytes: int


class Relay:
    """Serves remote workers at an address until `close`."""

    def __init__(self, order: Order, duty: bytes, secret: bytes) -> None:
        self._order, self._duty = order, duty
        self._fields = Fields(*order.fields)
        self._ranks = Ranks(Path(order.folder), order.job)
        self._taken: dict[str, int] = {}
        self._highest: dict[str, int] = {}
        self._name = offers.name_of(process.own())
        self._changed = threading.Condition()
        self._pace = Pace()
        self._seats: set[Seat] = set()
        self._unseen: deque[tuple[float, Task]] = deque()
        """Batches that were delivered: when, and of which work."""
        self._idle: deque[Seat] = deque()
        self._is_over = False
        self._looked_at = -_LOOK_FOR_RANKS_S
        self._reception = Reception((order.host, order.port), self._converse, secret)
        self.address = self._reception.address
        self._thread = threading.Thread(target=self._dispatch, name="stoker-relay", daemon=True)
        self._thread.start()

    def _converse(self, channel: Channel) -> None:
        seat = Seat(channel, self._fields, self._pace, self._wait, self._delivered)
        with self._changed:
            self._seats.add(seat)
        try:
            seat.run(self._order.versions, self._duty)
        finally:
            with self._changed:
                self._seats.discard(seat)
                with contextlib.suppress(ValueError):
                    self._idle.remove(seat)
                task = seat.task
            if task is not None:  # it was given while the seat ended
                task.rank.works.give_back(task.number)

    def _wait(self, seat: Seat) -> Task | None:
        """A seat wants a work."""
        with self._changed:
            if self._is_over:
                return None
            seat.given.clear()
            self._idle.append(seat)
            self._changed.notify()
        seat.given.wait()
        return seat.task

    def _delivered(self, task: Task) -> None:
        self._unseen.append((now(), task))

    def _dispatch(self) -> None:
        """Give works to seats that want one. The only thread that takes works."""
        while True:
            with self._changed:
                if self._is_over:
                    return
                if not self._idle:
                    self._changed.wait(_LOOK_FOR_RANKS_S if not self._seats else _MOST_APART_S)
                has_idle = bool(self._idle)
            self._take_back_late()
            task = self._take() if has_idle else None
            with self._changed:
                if task is not None and self._idle:
                    seat = self._idle.popleft()
                    seat.task, seat.began = task, now()
                    seat.given.set()
                    continue
                if task is not None:
                    task.rank.works.give_back(task.number)
                elif has_idle and not self._is_over:
                    self._changed.wait(self._pause_s())

    def _pause_s(self) -> float:
        if not self._ranks.there:
            return _LOOK_FOR_RANKS_S / 5
        return min(max(self._pace.batch_s / _LOOKS_PER_BATCH, _LEAST_APART_S), _MOST_APART_S)

    def _take(self) -> Task | None:
        if now() - self._looked_at >= _LOOK_FOR_RANKS_S or not self._ranks.there:
            self._looked_at = now()
            self._ranks.look()
        behind: list[tuple[float, Rank, list[int]]] = []
        for rank in self._ranks.there.values():
            waiting = rank.works.waiting()
            if waiting and rank.works.are_all_busy(rank.workers) and self._may_take(rank, waiting[-1]):
                behind.append((len(waiting) / rank.workers, rank, waiting))
        for _, rank, waiting in sorted(behind, key=lambda one: -one[0]):
            content = rank.works.take(waiting[-1], self._name)
            if content is not None:
                self._taken[rank.address] = self._taken.get(rank.address, 0) + 1
                return Task(rank, waiting[-1], content)
        return None

    def _may_take(self, rank: Rank, number: int) -> bool:
        """Whether one more does not exceed the ratio. Works are counted from the first of a rank's pool on."""
        highest = self._highest[rank.address] = max(self._highest.get(rank.address, 0), number + 1)
        return self._taken.get(rank.address, 0) + 1 <= self._order.ratio * highest

    def _take_back_late(self) -> None:
        for seat in list(self._seats):
            task = seat.task
            if task is not None and seat.is_late():
                task.rank.works.give_back_if(task.number, self._name)
        while self._unseen and now() - self._unseen[0][0] > _UNSEEN_S:
            _, task = self._unseen.popleft()
            task.rank.works.give_back_if(task.number, self._name)

    def close(self) -> None:
        """End it. Works that are under way go back to their ranks."""
        with self._changed:
            self._is_over = True
            for seat in self._idle:
                seat.given.set()
            self._changed.notify_all()
        self._thread.join()
        self._reception.close()


def main() -> int:
    """Be a relay, as the document on standard input says."""
    words = sys.stdin.buffer
    try:
        order = Order(**json.loads(words.readline()))
        relay = Relay(order, words.read(order.duty_bytes), shared_secret())
    except ConfigError as error:
        print(json.dumps({"trouble": str(error)}), flush=True)
        return 1
    print(json.dumps({"address": relay.address}), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
    words.read(1)  # until the training process has gone, or wants no more
    relay.close()
    return 0


def document(order: Order) -> bytes:
    """What `main` reads first."""
    return json.dumps(asdict(order)).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main())
