"""The relay: a process on the trainer's host that hands works of its ranks to remote workers, and takes their batches.

Works are taken where a remote worker is free, all of the rank's own workers are busy, and the part of its works that may
go away is not reached. Of the works that wait the last is taken: it is needed last. So own workers are never idle for want
of work. A remote work that holds them up is left to them, too. How large that part is `decide.split` decides from what is
seen here, look by look, unless the user has said it. There is no torch here.

    python -m stoker.remote.relay          (with a document on standard input, then lines with another ratio and part; ends
                                            when that is closed, or at an empty line)
"""

import contextlib
import json
import os
import pickle
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stoker.decide.offload import Offload
from stoker.decide.split import Split
from stoker.errors import ConfigError
from stoker.host import process
from stoker.meter import now
from stoker.remote.cluster import ClusterAddress
from stoker.remote.files import ServedFiles
from stoker.remote.gauge import Gauge
from stoker.remote.measured import MeasuredFile
from stoker.remote.parts import ALL, PARTS, Parts
from stoker.remote.placement import WorkerPlacement
from stoker.remote.placing import PlacingOrder
from stoker.remote.ranks import Rank, Ranks
from stoker.remote.seats import BatchPace, Fields, RemoteSeat, Task
from stoker.remote.telling import Telling
from stoker.slots import makers, offers
from stoker.slots.offer_rows import Heard
from stoker.wire.channel import Channel
from stoker.wire.reception import Reception
from stoker.wire.secret import shared_secret

_LOOK_FOR_RANKS_S = 0.5
_LOOKS_PER_BATCH = 10
_LEAST_APART_S, _MOST_APART_S = 0.001, 0.02
_MORE_CREDIT = 4
_OWN_BATCHES = 3
"""A remote work is left to own workers that have nothing else, if it takes as long as so many batches take one of them."""
_UNSEEN_S = 2.0
"""A batch that its rank has not seen for so long is left to own workers, too: the rank may take no help any more."""


@dataclass(frozen=True, slots=True)
class RelayOrder:
    """What a relay is told when it is started. The pickled duty follows it."""

    host: str
    port: int
    folder: str
    job: str
    ratio: float | None
    """The part of all works that others may make; None: it is decided by measuring."""
    keys: tuple[str, str]
    """Names of the model and of the pipeline, under which measurements are kept."""
    versions: dict[str, str]
    fields: tuple[int, ...]
    duty_bytes: int
    secret: str | None = None
    """That of this run; None: the one that hosts of this user share."""
    cluster: dict[str, Any] | None = None
    """Where Ray places workers: a `Cluster` with Ray's own address, in plain values."""
    part: str | None = ALL
    """What others do of a batch; None: that is found out by measuring."""
    against: dict[str, str] = field(default_factory=dict)
    """Why other parts cannot work."""
    roots: tuple[str, ...] = ()
    """The folders whose files remote workers may ask for."""
    reads_bytes: int = 0
    """How long the pickled `FileReads` are that follow the duty, if the loader has a cache."""


class Relay:
    """Serves remote workers at an address until `close`."""

    def __init__(self, order: RelayOrder, duty: bytes, secret: bytes, reads: Any = None) -> None:
        self._order, self._duty = order, duty
        self.parts = Parts(order.part or ALL, order.against, ServedFiles(order.roots, reads))
        self._fields = Fields(*order.fields)
        self._ranks = Ranks(Path(order.folder), order.job)
        self._name = makers.name_of(process.own())
        self._changed = threading.Condition()
        self._pace = BatchPace()
        self._seats: set[RemoteSeat] = set()
        self._unseen: deque[tuple[float, Task]] = deque()
        """Batches that were delivered: when, and of which work."""
        self._idle: deque[RemoteSeat] = deque()
        self._is_over = False
        self.placement: WorkerPlacement | None = None
        """Who has workers placed, if somebody has."""
        self._looked_at = -_LOOK_FOR_RANKS_S
        self._gauge = Gauge(now())
        self._measured = MeasuredFile(*order.keys)
        self._split: Split | None = None
        self.limit(order.ratio)
        self._telling = Telling()
        self._reception = Reception((order.host, order.port), self._converse, secret)
        self.address = self._reception.address
        self._thread = threading.Thread(target=self._dispatch, name="stoker-relay", daemon=True)
        self._thread.start()

    def _converse(self, channel: Channel) -> None:
        seat = RemoteSeat(channel, self._fields, self._pace, self._wait, self._delivered, self.parts)
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

    def _wait(self, seat: RemoteSeat) -> Task | None:
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
        task.rank.delivered += task.rank.works.is_with(task.number, self._name)
        self._unseen.append((now(), task))

    def limit(self, ratio: float | None, part: str | None = None) -> None:
        """Send away so much from now on, and have such a part done there; None: decide it by measuring."""
        self.parts.now = part or self.parts.now
        parts = self.parts.possible() if self._order.part is None else [self._order.part]
        self._fixed, self._split = ratio or 0.0, Split(self._measured.before(), parts) if ratio is None else None

    @property
    def _most(self) -> float:
        split = self._split
        return self._fixed if split is None else split.most

    def _steer(self) -> None:
        """Look at what happened, and decide anew."""
        at, seats = now(), [seat for seat in list(self._seats) if seat.is_ready]
        if at - self._looked_at >= _LOOK_FOR_RANKS_S or not self._ranks.there:
            self._looked_at = at
            self._ranks.look()
        ranks = [rank for rank in self._ranks.there.values() if rank.works.state == offers.MAY_BE_HELPED]
        self._gauge.note(at, ranks)
        look = self._gauge.look(at, ranks, seats, self.parts.now)
        if look is None:
            return
        workers = look.workers
        ratio, wanted, is_timed, split = self._fixed, 0, False, self._split
        if split is not None:
            kind = ", ".join(sorted({seat.kind for seat in seats}))
            if workers and not split.known.there:
                split.known = self._measured.with_remote(split.known, kind, split.parts)
            if self._order.part is None:
                split.parts = self.parts.possible()
            split.look(look)
            self.parts.now = split.part
            self._measured.keep(split.known, kind if workers else None)
            if split.decision is not None:
                if workers and split.is_settled:
                    self._say(split.decision)
                wanted = split.decision.workers
                if self.placement is not None and split.is_settled and split.known.there:
                    self.placement.want(max(1, wanted))  # with none at all nobody would see that they are needed again
            is_timed, ratio = split.timings > len(look.timings), split.ratio
        for rank in ranks:
            timed = rank.works.told().timed + is_timed
            rank.works.say(Heard(int(ratio * 1e6), workers, wanted, timed, PARTS.index(self.parts.now)))

    def _say(self, decision: Offload) -> None:
        if (words := self._telling.words(decision)) is not None:
            print(f"stoker: {words}", file=sys.stderr, flush=True)

    def _dispatch(self) -> None:
        """Give works to seats that want one. The only thread that takes works."""
        while True:
            with self._changed:
                if self._is_over:
                    return
                if not self._idle:
                    self._changed.wait(_LOOK_FOR_RANKS_S if not self._seats else _MOST_APART_S)
                has_idle = bool(self._idle)
            self._steer()
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
        if not self._most:
            return _MOST_APART_S
        return min(max(self._pace.batch_s / _LOOKS_PER_BATCH, _LEAST_APART_S), _MOST_APART_S)

    def _take(self) -> Task | None:
        behind: list[tuple[float, Rank, list[int]]] = []
        for rank in self._ranks.there.values():
            waiting = rank.works.waiting()
            if waiting and rank.works.are_all_busy(rank.workers) and self._may_take(rank, waiting[-1]):
                behind.append((len(waiting) / rank.workers, rank, waiting))
        for _, rank, waiting in sorted(behind, key=lambda one: -one[0]):
            content = rank.works.take(waiting[-1], self._name)
            if content is not None:
                rank.credit -= 1
                return Task(rank, waiting[-1], content)
        return None

    def _may_take(self, rank: Rank, number: int) -> bool:
        """Whether one more does not exceed the ratio: of each work that is ordered such a part may go away."""
        if number >= rank.highest:
            most = float(_MORE_CREDIT + len(self._seats))  # works come in bursts
            rank.credit = min(rank.credit + self._most * (number + 1 - rank.highest), most)
            rank.highest = number + 1
        return rank.credit >= 1

    def _take_back_late(self) -> None:
        long_s, overdue = _OWN_BATCHES * self._gauge.own_batch_s, []
        for seat in list(self._seats):
            task = seat.task
            if task is None:
                continue
            if seat.is_late():
                task.rank.works.give_back_if(task.number, self._name)
            elif 0 < long_s < now() - seat.began:
                overdue.append(task)
        for task in sorted(overdue, key=lambda task: task.number):
            if not task.rank.works.has_queue():  # or else own workers have something to do, or have just been given one
                task.rank.works.give_back_if(task.number, self._name)
        while self._unseen and now() - self._unseen[0][0] > _UNSEEN_S:
            _, task = self._unseen.popleft()
            task.rank.works.give_back_if(task.number, self._name)

    def close(self) -> None:
        """End it. Works that are under way go back to their ranks."""
        if self.placement is not None:
            self.placement.close()
        with self._changed:
            self._is_over = True
            for seat in self._idle:
                seat.given.set()
            self._changed.notify_all()
        self._thread.join()
        self._measured.save()
        self._reception.close()


def main() -> int:
    """Be a relay, as the document on standard input says."""
    words = sys.stdin.buffer
    try:
        order = RelayOrder(**json.loads(words.readline()))
        duty, reads = words.read(order.duty_bytes), words.read(order.reads_bytes)
        secret = order.secret.encode() if order.secret else shared_secret()
        relay = Relay(order, duty, secret, pickle.loads(reads) if reads else None)
    except ConfigError as error:
        print(json.dumps({"trouble": str(error)}), flush=True)
        return 1
    trouble = _place(order, relay) if order.cluster is not None else ""
    print(json.dumps({"trouble": trouble} if trouble else {"address": relay.address}), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
    while (line := words.readline()).strip():  # until the training process has gone, or wants no more
        relay.limit(**json.loads(line))
    relay.close()
    return 0


def _place(order: RelayOrder, relay: Relay) -> str:
    """Have workers placed that dial a relay. Returns why that cannot be, if the user insists on them."""
    assert order.cluster is not None and order.secret is not None
    host, port = relay.address
    dial = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
    asked = ClusterAddress(**order.cluster)
    relay.placement = WorkerPlacement(
        PlacingOrder(asked.address, dial, order.secret, asked.workers, asked.resources, asked.labels)
    )
    return relay.placement.first_answer() if asked.is_required else ""


def document(order: RelayOrder) -> bytes:
    """What `main` reads first."""
    return json.dumps(asdict(order)).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main())
