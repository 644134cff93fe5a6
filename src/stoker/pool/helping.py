"""A worker of a rank that shares: with no orders of its own, it makes batches for other ranks of its job.

Its own orders come first. Then it takes up what its own rank lacks. Then it helps the rank that is furthest behind: all
workers of that rank are busy, it has no finished batch to spare, and most works wait for each of its workers. The batch
goes into memory that this worker has made for that rank, and over a socket that only processes of this user may use. What
it cannot make, because it raises an error or does not fit into a slot, it leaves to the rank's own workers, so errors are
raised as they would be without it.
"""

import contextlib
import queue
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stoker.host import process
from stoker.host.sockets import check_same_user
from stoker.pool.filling import Reducers
from stoker.pool.maker import Room
from stoker.pool.processes import LineExchange, Serving
from stoker.pool.serving import Duty, Exchange, Result
from stoker.pool.work import NOT_COMMON, Made, Work, work_of
from stoker.pool.worker import SlotRoom, explain
from stoker.slots import makers, offers
from stoker.slots.area import Area
from stoker.slots.lines import WorkerReports
from stoker.slots.messages import Plain, framed, marshalled, opened
from stoker.slots.offers import OffersSeen
from stoker.slots.outbox import Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import collate_with, leaves_in, plain_reducers

_LOOK_FOR_RANKS_S = 0.5
_JUST_HELPED = -1
_LOOKS_PER_BATCH = 20
_SHORT_BATCH_S, _RARELY_S = 0.005, 0.01
_FOR_AN_ORDER_S, _MOST_APART_S = 0.001, 0.05
_MOST_DOUBLINGS = 3
_HELLO_VERSION = 1


class SharedServing(Serving):
    """What runs in a worker process of a rank that shares. It is sent there."""

    def __init__(self, duty: Duty, worker: int, room: SlotRoom, *, own: Path) -> None:
        super().__init__(duty, worker, room)
        self._own = own

    def exchange(self, lines: LineExchange) -> tuple[Exchange, Room]:
        """This worker's lines, and the works of other ranks."""
        return if_shared(lambda: Helping(lines, self._room, self._own), lines, self._room)


def if_shared(helping: Callable[[], "Helping"], lines: LineExchange, room: Room) -> tuple[Exchange, Room]:
    """Where a worker gets work and leaves what it made. Lines alone if its rank shares no more: an epoch that was left at
    once is over before its workers begin."""
    try:
        both = helping()
    except FileNotFoundError:
        return lines, room
    return both, both


class HelperRoom(SlotRoom):
    """Slots of this worker for batches of one other rank."""

    reducers: Reducers = staticmethod(plain_reducers)  # its training process is no relative of this one

    def __init__(self, area: Area, caching: Caching, own: SlotRoom) -> None:
        super().__init__(area, caching, alike_everywhere=own.alike_everywhere)
        self.pid = own.pid
        self.outbox = Outbox(area, 0)
        self.leaves = leaves_in(self.outbox, alike_everywhere=self.alike_everywhere, instead_of=own.leaves)


class _Rank:
    """Another rank, as this worker sees it."""

    def __init__(self, works: OffersSeen) -> None:
        self.works = works
        self.workers = int(works.about["workers"])
        self.room: HelperRoom | None = None
        self._reports: WorkerReports | None = None

    def connect(self, own: SlotRoom, stop: Any) -> HelperRoom:
        """Make memory for batches of that rank, and tell its training process of it. Raises OSError if it has gone."""
        if self.room is not None:
            return self.room
        area = Area(1, int(self.works.about["prefetch"]))
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.connect(f"\0{self.works.about['address']}")
            check_same_user(connection)
            hello = framed(marshalled((_HELLO_VERSION, area.prefetch, area.stride)))
            socket.send_fds(connection, [hello], [area.memory.descriptor])
            self._reports = WorkerReports(connection.detach(), stop, explain)
        self.room = HelperRoom(area, own.caching, own)
        return self.room

    def report(self, number: int, made: Made) -> None:
        """Hand over a batch."""
        assert self._reports is not None
        self._reports.put((number, Plain(made)))

    def close(self) -> None:
        """Forget that rank."""
        self.works.close()
        if self._reports is not None:
            self._reports.hang_up()


class _Help(NamedTuple):
    """A work of another rank."""

    rank: _Rank
    number: int


class Helping:
    """The exchange of a worker that shares, and its room."""

    def __init__(self, lines: LineExchange, room: SlotRoom, own: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._own_room = self._room = room
        self._own = OffersSeen(own)
        self._name = makers.name_of(process.own())
        self._ranks: dict[Path, _Rank] = {}
        self._behind: set[Path] = set()
        """Ranks that were behind when this worker looked around last."""
        self._clock = clock
        self._looked_at = self._listed_at = -_LOOK_FOR_RANKS_S
        self._batch_s = 0.0
        self._in_vain = 0
        """How often this worker has looked around since it last found something to do, or _JUST_HELPED."""

    # ---- the exchange

    def next(self) -> tuple[Any, Work] | None:
        """The next work: of an order, or of those that lack a worker."""
        while True:
            try:
                order = self._lines.orders.get(self._pause_s())
            except queue.Empty:
                self._looked_at = self._clock()
                given = self._left() or self._for_another_rank()
                if given is not None:
                    self._in_vain = _JUST_HELPED
                    return given
                self._in_vain = max(self._in_vain, 0) + 1
                continue
            if self._in_vain == _JUST_HELPED:
                self._in_vain = 0
            mine = self._lines.opened(order)
            if mine is None:
                for rank in self._ranks.values():
                    rank.close()
                return None
            if self._own.begin(mine[0]):
                self._use(self._own_room)
                return mine
            self._skip(*mine)

    def publish(self, name: Any, result: Result) -> None:
        """Report a batch to its rank. Other ranks' own workers make what could not be made here."""
        if isinstance(result, Made):
            self._batch_s += (result.prep_s - self._batch_s) / 4
        if not isinstance(name, _Help):
            self._own.done(name)  # before the training process says that it is over
            self._lines.publish(name, result)
        elif isinstance(result, Made) and result.place is not None:
            name.rank.report(name.number, result)
        else:
            name.rank.works.give_back(name.number)

    def give_up(self, name: Any) -> None:
        """This worker ends: leave the work to others."""
        if isinstance(name, _Help):
            name.rank.works.give_back(name.number)
        else:
            self._lines.give_up(name)

    # ---- the room

    @property
    def outbox(self) -> Outbox:
        """The outbox of the rank that the batch is for."""
        return self._room.outbox

    def put(self, make: Callable[[], Any], samples: int, slot: int = NOT_COMMON) -> Made:
        """Make a batch in a slot of the rank that it is for."""
        return self._room.put(make, samples, slot)

    def _use(self, room: SlotRoom) -> None:
        if self._room is not room:
            self._room = room
            collate_with(room.leaves)

    # ---- works that lack a worker

    def _skip(self, number: int, work: Work) -> None:
        """Another worker has this one. If that fails, `_left` finds it."""

    def _left(self) -> tuple[Any, Work] | None:
        """A work of this rank that no worker is making."""
        for number in self._own.left():
            content = self._own.take(number, offers.OWN)
            if content is not None:
                self._use(self._own_room)
                return number, _work(content)
        return None

    def _for_another_rank(self) -> tuple[Any, Work] | None:
        self._look_for_ranks()
        behind = []
        for path, rank in self._ranks.items():
            waiting = rank.works.waiting()
            if waiting and rank.works.is_behind(rank.workers):
                behind.append((len(waiting) / rank.workers, path, waiting[0]))
        before, self._behind = self._behind, {path for _, path, _ in behind}
        for _, path, number in sorted(behind, reverse=True):
            if self._batch_s < _SHORT_BATCH_S and self._in_vain != _JUST_HELPED and path not in before:
                continue  # it may be so for a moment only
            rank = self._ranks[path]
            try:
                room = rank.connect(self._own_room, self._lines.stop)
            except OSError:  # it has just ended, or there is no memory
                self._ranks.pop(path).close()
                continue
            content = rank.works.take(number, self._name)
            if content is not None:
                self._use(room)
                return _Help(rank, number), _work(content)
        return None

    def _look_for_ranks(self) -> None:
        """See which ranks of this job are there now."""
        if self._looked_at - self._listed_at < _LOOK_FOR_RANKS_S:
            return
        self._listed_at = self._looked_at
        own = self._own.path
        gone, new = offers.look_for(own.parent, self._own.about["job"], {own, *self._ranks})
        for path in gone - {own}:
            self._ranks.pop(path).close()
        self._ranks |= {path: _Rank(works) for path, works in new.items()}

    def _pause_s(self) -> float:
        """How long to wait for an order before looking around.

        A look costs a tenth of a millisecond. So where batches are short looks are rare, and rarer if they are in vain. The
        time counts from look to look, not from order to order: a worker may be idle often, and never for long.
        """
        if self._in_vain == _JUST_HELPED:
            return 0.0
        if not self._ranks and not self._own.about.get("relayed"):
            apart_s = _LOOK_FOR_RANKS_S
        else:
            apart_s = _RARELY_S if self._batch_s < _SHORT_BATCH_S else self._batch_s / _LOOKS_PER_BATCH
            apart_s = min(apart_s * (1 << min(self._in_vain, _MOST_DOUBLINGS)), _MOST_APART_S)
        return max(self._looked_at + apart_s - self._clock(), _FOR_AN_ORDER_S)


def _work(content: bytes) -> Work:
    """The work that a description describes."""
    work = opened(content)[1]
    return work if type(work) is Work else work_of(work)
