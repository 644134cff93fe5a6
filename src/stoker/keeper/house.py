"""What a keeper has: a queue for each loader, and readers that serve them.

A reader is a thread that waits for storage most of the time. It serves the queue that it is assigned to. One that is
assigned to none, or whose queue has nothing to read, serves the queue that is needed soonest. What is queued wakes one
reader, and one that begins to wait wakes the next: they do not stand in each other's way. The governor assigns
readers when a loop would be late (`decide.governor`), and takes them back when another one needs them more; with fewer
readers than queues all of them serve all queues in turn.

Where a control group leaves no processor time to spare nothing is read ahead: it would be taken from the workers, who are
the limit then, and read for less.
"""

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from stoker.cache.staging import Stager
from stoker.cache.tier import DiskTier
from stoker.decide.governor import Place, RankQueue, govern
from stoker.host.throttling import Throttling
from stoker.keeper import messages
from stoker.keeper.abroad import Abroad, addresses_in
from stoker.keeper.bringing import Bringing, Brought, Near, bring_all
from stoker.keeper.far import Far
from stoker.keeper.messages import Said
from stoker.keeper.opens import Opens
from stoker.keeper.queues import LoaderQueue
from stoker.keeper.reuse import Reuse, orders_of
from stoker.keeper.table import KeeperTable
from stoker.meter import Tally, now
from stoker.plan import MOST_READERS

PERIOD_S = 0.25
"""Readers are not moved again before."""
_LOOK_S, _SELDOM_S = 0.1, 0.5
"""How often it looks, and where processor time is short."""
_LOOK_ABROAD_S = 1.0
"""Other hosts tell what they hold at any time, also while nothing is queued: what is shown of them is at most so old."""
_EASY = 0.7
"""Nobody is near to being late if an equal share of the readers takes at most this part of the loop's time."""
_EASY_S = 0.75
"""Readers are everybody's again after it was so for this long."""
_MOVES_SHOWN = 8
_WAITED_S = 0.01
"""Who has taken so long without reading has waited, too: where files are looked up slowly, several do that at once."""


class House:
    """Everything but the lines."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[tuple[int, int], LoaderQueue] = {}
        self._nears: dict[Path, tuple[Near, int]] = {}
        self._threads: list[threading.Thread] = []
        self._homes: list[LoaderQueue | None] = []
        """The queue that each reader is assigned to."""
        self._is_over = False
        self._abroad = Abroad()
        self._opens: weakref.WeakValueDictionary[tuple[Path, str], Opens] = weakref.WeakValueDictionary()
        """What was recorded of datasets that list no files, or not all; their queues keep it."""
        self._is_more_to_learn = False
        self._moves: deque[dict[str, Any]] = deque(maxlen=_MOVES_SHOWN)
        self._moved = 0
        self._moved_at = self._looked_at = self._hard_at = 0.0
        self._throttling = Throttling()
        self._is_starved = False

    @property
    def look_s(self) -> float:
        """At least so long is between two looks."""
        return _SELDOM_S if self._is_starved else _LOOK_S

    @property
    def look_again_s(self) -> float | None:
        """When to call `govern` again; None: when something was heard."""
        if self._is_more_to_learn:
            return 0.0
        if any(queue.works for queue in self._queues.values()):
            return self.look_s
        return _LOOK_ABROAD_S if self._abroad.has_others else None

    def hear(self, line: socket.socket, pid: int, said: Said) -> None:
        """A process has said something. Raises ValueError if it makes no sense."""
        name = line.fileno(), said.loader
        if said.kind == messages.LOADER:
            self._come(name, pid, said)
            return
        if said.kind == messages.ASKED:
            self._abroad.asked(line, said, list(self._queues.values()))
            return
        with self._changed:
            queue = self._queues.get(name)
            if queue is None:
                return
            if said.kind == messages.QUEUED:
                queue.add(said.number, said.indices(), said.taken, said.waited_s, now())
                if not self._is_starved:
                    self._changed.notify()
            elif said.kind == messages.OVER:
                queue.clear(said.taken)
                if queue.bringing.far is not None:
                    queue.bringing.far.is_first_epoch = False
            elif said.kind == messages.MET:
                if queue.bringing.far is not None:
                    queue.bringing.far.peering.add(addresses_in(said.document()))
            elif said.kind == messages.EPOCH:
                if queue.reuse is not None:
                    queue.reuse.begin(said.number)
            else:
                self._close(name)
                self._abroad.forget(*name)

    def _come(self, name: tuple[int, int], pid: int, said: Said) -> None:
        descriptors = list(said.descriptors)
        try:
            about = said.document()
            more = [str(name) for name in about["more"]]
            if len(descriptors) != 2 + len(more) or not (0 <= int(about["staging"]) < 1 << 40):
                return
            near = self._near(Path(about["folder"]), str(about.get("disk", "")))
            stager = Stager(int(about["staging"]), descriptors.pop(0))
            roots, table = tuple(map(str, about["roots"])), KeeperTable(descriptors.pop(0))
            far = self._abroad.join(name, about, near.folder, table, roots)
            if "orders" in more and far is not None:
                self._foretell(near, far, table, roots, about["reuse"], descriptors.pop(more.index("orders")))
                more.remove("orders")
            bringing = Bringing(
                near, stager, roots, fills_cache=bool(about["fills"]), is_shared=bool(about["peers"]), far=far
            )
            opens, log = None, 0
            if "notes" in more:
                opens, log = self._recorded(near.folder, about, descriptors.pop(more.index("notes")))
            shown = {"pid": pid, "rank": about["rank"], "loader": said.loader, "governed": bool(about["governed"])}
            queue = LoaderQueue(shown, table, bringing, opens, log)
        except (OSError, KeyError, TypeError):
            return  # its cache is gone, perhaps: it goes on without
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with self._changed:
            self._close(name)
            self._queues[name] = queue
        if far is not None and about["fills"]:
            self._abroad.fill(queue)
        self._hire(int(about["readers"]))

    def _foretell(
        self, near: Near, far: Far, table: KeeperTable, roots: tuple[str, ...], told: Any, descriptor: int
    ) -> None:
        """A loader knows what all ranks read: its cache is kept by reuse."""
        orders = orders_of(told, descriptor)
        if near.reuse is not None and near.reuse.peering is not far.peering:
            near.reuse.close()  # the other hosts are called by other names now, and the old ones may be gone
            near.reuse = None
        if near.reuse is None:
            near.reuse = Reuse(near.store, near.budget, far.peering, table, roots, told)
        if near.reuse.digest == table.digest:
            near.reuse.orders_are(orders)

    def _recorded(self, folder: Path, about: dict[str, Any], log: int) -> tuple[Opens, int]:
        """What loaders of such a dataset have recorded, with the log of one more, and its number."""
        name = folder, str(about["files"])
        opens = self._opens.get(name)
        if opens is None:
            opens = self._opens[name] = Opens(int(about["samples"]))
        number = opens.add(log)
        self._is_more_to_learn = opens.learn() or self._is_more_to_learn
        return opens, number

    def _near(self, folder: Path, disk: str) -> Near:
        near, users = self._nears.get(folder, (None, 0))
        if near is None or not near.store.is_there():
            near, users = Near(folder), 0
        if disk and near.disk is None:
            near.disk = DiskTier(Path(disk), Tally())
        self._nears[folder] = near, users + 1
        return near

    def _hire(self, readers: int) -> None:
        while len(self._threads) < min(readers, MOST_READERS):
            number = len(self._threads)
            self._homes.append(None)
            self._threads.append(threading.Thread(target=self._serve, args=(number,), name=f"reader-{number}", daemon=True))
            self._threads[-1].start()

    def leave(self, caller: int) -> None:
        """A process is gone: forget its queues."""
        with self._changed:
            for name in [name for name in self._queues if name[0] == caller]:
                self._close(name)
            self._abroad.forget(caller)

    def _close(self, name: tuple[int, int]) -> None:
        queue = self._queues.pop(name, None)
        if queue is not None:
            queue.is_closed = True
            queue.works.clear()
            self._homes = [None if home is queue else home for home in self._homes]
            if not queue.busy:
                self._let_go(queue)

    def _let_go(self, queue: LoaderQueue) -> None:
        near = queue.bringing.near
        if queue.opens is not None:
            queue.opens.let_go(queue.log)
        self._abroad.leave(queue.bringing.far, near.folder)
        known, users = self._nears.get(near.folder, (None, 0))
        if known is near and users > 1:
            self._nears[near.folder] = near, users - 1
        else:
            if known is near:
                del self._nears[near.folder]
            near.close()

    # -- readers

    def _serve(self, number: int) -> None:
        while True:
            with self._changed:
                while (found := self._next(number)) is None:
                    if self._is_over:
                        return
                    self._changed.wait()
                queue, work, index = found
                queue.busy += 1
            outcome, took_s, is_lost, began = Brought.LEFT, 0.0, False, now()
            try:
                outcome, took_s = bring_all(queue.bringing, work, queue.paths(index), self._wake_another)
            except OSError:
                is_lost = not queue.bringing.near.store.is_there()
            except ValueError:
                pass  # a path that is none: a worker will say so
            if not took_s and now() - began > _WAITED_S:
                self._wake_another()
            with self._changed:
                queue.busy -= 1
                if is_lost:
                    queue.is_closed = True
                elif queue.is_useless():
                    queue.is_closed = True
                    queue.bringing.stager.give_up()
                if is_lost:  # its memory is given back when nobody holds it
                    self._queues = {name: other for name, other in self._queues.items() if other is not queue}
                    self._homes = [None if home is queue else home for home in self._homes]
                if outcome is Brought.NO_ROOM:
                    queue.put_back(work)
                else:
                    queue.met(took_s if outcome is Brought.READ else None, is_there=not took_s)
                if queue.is_closed and not queue.busy and queue not in self._queues.values():
                    self._let_go(queue)

    def _wake_another(self) -> None:
        with self._changed:
            if any(queue.has_more for queue in self._queues.values()):
                self._changed.notify()

    def _next(self, number: int) -> tuple[LoaderQueue, int, int] | None:
        if self._is_starved:
            return None
        home = self._homes[number]
        others = sorted(self._queues.values(), key=lambda queue: queue.needed_in_s)
        for queue in [home, *others] if home is not None else others:
            found = queue.next()
            if found is not None:
                return queue, *found
        return None

    # -- the governor

    def govern(self) -> bool:
        """Move readers, if that is worth it. Returns whether there is news to publish."""
        at = now()
        is_time = at - self._looked_at >= self.look_s
        if is_time or self._is_more_to_learn:
            self._is_more_to_learn = any(opens.learn() for opens in list(self._opens.values()))
        if not is_time:
            return False
        self._looked_at = at
        self._is_starved = self._throttling.is_starved(at)
        for queue in list(self._queues.values()):
            queue.bringing.stager.beat()
        with self._changed:
            governed = [queue for queue in self._queues.values() if queue.about["governed"]]
            loops = [queue.loop_s for queue in governed if queue.loop_s]
            if len(governed) > 1 and loops:
                self._govern(governed, min(loops), at)
        return True

    def _govern(self, queues: list[LoaderQueue], train_s: float, at: float) -> None:
        budget = len(self._threads)
        share = budget // len(queues)
        if share and all(queue.batch_s(budget)[share] <= _EASY * train_s for queue in queues):
            if at - self._hard_at >= _EASY_S:
                for queue in queues:
                    self._move(queue, None, queue.readers, "an equal share is enough for everybody", at)
            return
        self._hard_at = at
        ranks = [RankQueue(len(queue.works), {"reading": queue.batch_s(budget)}) for queue in queues]
        places = [Place(number, "reading") for number in range(len(queues))]
        current = {place: queue.readers for place, queue in zip(places, queues, strict=True)}
        found = govern(ranks, current, budget=budget, train_s=train_s, since_s=at - self._moved_at, period_s=PERIOD_S)
        for move in found.moves:
            source = None if move.source is None else queues[move.source.rank]
            target = None if move.target is None else queues[move.target.rank]
            self._move(source, target, move.count, found.reason, at)

    def _move(self, source: LoaderQueue | None, target: LoaderQueue | None, count: int, why: str, at: float) -> None:
        moving = [number for number, home in enumerate(self._homes) if home is source][:count]
        if not moving:
            return
        for number in moving:
            self._homes[number] = target
        for queue in (source, target):
            if queue is not None:
                queue.readers = sum(home is queue for home in self._homes)
        names = [None if one is None else one.name for one in (source, target)]
        self._moves.append({"at": round(at, 3), "from": names[0], "to": names[1], "count": len(moving), "why": why})
        self._moved += len(moving)
        self._moved_at = at

    def state(self) -> dict[str, Any]:
        """What others may see of it."""
        with self._changed:
            queues = [queue.state() for queue in self._queues.values()]
            found = {"readers": len(self._threads), "queues": queues, "moves": list(self._moves), "moved": self._moved}
            return {**found, "peers": self._abroad.state()}

    def close(self) -> None:
        """End all readers. One that waits for storage is not waited for."""
        with self._changed:
            self._is_over = True
            for name in list(self._queues):
                self._close(name)
            self._changed.notify_all()
        self._abroad.close()
        for thread in self._threads:
            with contextlib.suppress(RuntimeError):
                thread.join(0.1)
