"""A job's use of a cache: an item in the cache comes from there; another is read once, and kept if it fits.

`fetch` is the entry. It works in any process of the job, and the cache never makes it fail: an error of the cache is
counted, and the bytes come from storage.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stoker.cache import inspection, staging, stores
from stoker.cache.claims import Claims
from stoker.cache.inspection import StoreStats
from stoker.cache.shelf import Budget, CacheUse, Shelf
from stoker.cache.store import Store, StoreBusyError, StoreFullError
from stoker.cache.tier import DiskTier
from stoker.cache.wanted import Ruling, WantedItems
from stoker.host import forks
from stoker.memory import Bytes
from stoker.meter import Tally, now
from stoker.sealed import ItemDamagedError

T = TypeVar("T")

_LOOK_EVERY = 256
"""After so many items a process checks whether the cache holds more than the budget of the jobs that are left."""


class _Open:
    """What one process has of a cache."""

    def __init__(self, folder: Path) -> None:
        self.owner = os.getpid()
        self.budget = Budget(folder)
        self.budget.bytes()
        self.store: Store = stores.acquire(folder)
        self.claims = Claims(folder / "claims")
        self.close = weakref.finalize(self, stores.release, self.store)
        self.close.atexit = False


class Cache:
    """The cache of a name, for one job and its workers; `disk` is DIR:SIZE. A private one ends with this job."""

    def __init__(
        self,
        name: str,
        capacity_bytes: int,
        directory: str | os.PathLike[str] | None = None,
        *,
        is_private: bool = False,
        disk: str | None = None,
    ) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.directory = directory
        self.is_private = is_private
        self.tally = Tally()
        self.folder: Path | None = None
        self._membership: CacheUse | None = None
        self._opened: _Open | None = None
        self._lost = False
        self._dropped: set[bytes] = set()
        """Items that were damaged, and are to be kept when they have been read."""
        self._gets = 0
        self._lock = threading.RLock()
        _living.add(self)
        try:
            self._membership = Shelf(directory).join(name, capacity_bytes, is_private=is_private)
            self.folder = self._membership.folder
            if self._membership.damage:
                self.tally.fail(f"{self._membership.damage}. It is made anew")
        except OSError as error:
            self._give_up(error)
        self.disk = None if disk is None else DiskTier.joined(name, disk, self.tally, is_private=is_private)

    def _give_up(self, error: OSError) -> None:
        """Stop using the cache: from now on everything comes from storage."""
        if not self._lost:
            self._lost = True
            self._opened = None
            gone = isinstance(error, FileNotFoundError) and self.folder is not None
            self.tally.fail(
                f"the cache in {self.folder} has been removed" if gone else f"the cache cannot be used: {error}"
            )

    def _open(self) -> _Open | None:
        opened = self._opened
        if opened is not None and opened.owner == os.getpid():
            return opened
        with self._lock:
            if self._lost or self.folder is None:
                return None
            if self._opened is None or self._opened.owner != os.getpid():
                try:
                    if Budget(self.folder).bytes() < self.capacity_bytes and not self.is_private:
                        # The process that joined has gone, but this one goes on. So this one joins for the job.
                        self._membership = Shelf(self.directory).join(self.name, self.capacity_bytes)
                    self._opened = _Open(self.folder)
                except OSError as error:
                    self._give_up(error)
            return self._opened

    def holds(self, key: bytes) -> bool:
        """Whether an item is in the cache."""
        return self.size(key) is not None

    def size(self, key: bytes) -> int | None:
        """How many bytes an item has in the cache, if it is there."""
        size = self._size_in_memory(key)
        return self.disk.size(key) if size is None and self.disk is not None else size

    def _size_in_memory(self, key: bytes) -> int | None:
        return self._ask(lambda opened: opened.store.size(key), None)

    def _ask(self, ask: Callable[[_Open], T], otherwise: T) -> T:
        opened = self._open()
        try:
            return otherwise if opened is None else ask(opened)
        except OSError as error:
            self._give_up(error)
            return otherwise

    def finds(self, key: bytes, size: int) -> bool:
        """Whether an item of a size is in the cache. Then it is counted as a hit, and may be read by blocks."""
        is_on_disk = self._size_in_memory(key) != size
        if is_on_disk and (self.disk is None or self.disk.size(key) != size):
            return False
        self.count(key, size, is_on_disk=is_on_disk)
        return True

    def get(self, key: bytes) -> Bytes | None:
        """An item of the cache, counted as a hit; None if it is not there."""
        near = self._get_from_memory(key)
        found: Bytes | None = near
        if near is None and self.disk is not None:
            found = self.disk.get(key)
        if found is not None:
            self.count(key, len(found), is_on_disk=near is None)
        return found

    def _get_from_memory(self, key: bytes) -> bytes | None:
        opened = self._open()
        if opened is None:
            return None
        try:
            self._gets += 1
            if self._gets % _LOOK_EVERY == 0:
                self._hold_to_budget(opened)
            return opened.store.get(key)
        except OSError as error:
            self._give_up(error)
        except ItemDamagedError:
            self._drop(key, opened)
        return None

    def count(self, key: bytes, size: int, *, is_on_disk: bool = False) -> None:
        """Count an item that was found: as a hit, unless it is only there because it was read ahead for this loader."""
        nearby = staging.current()
        brought = nearby.was_ahead(key) if nearby is not None else 0
        if not brought:
            self.tally.hit(size, is_on_disk=is_on_disk)
        else:
            self.tally.ahead(size, is_from_peer=bool(brought & staging.FROM_PEER))

    def staged(self, key: bytes, *, waits: bool = True) -> bytes | None:
        """An item that is not in the cache, but was read ahead for this loader. One that is just coming is waited for."""
        nearby = staging.current()
        if nearby is None:
            return None
        found = nearby.get(key)
        if found is None and waits and nearby.is_coming(key) and (opened := self._open()) is not None:
            if opened.claims.wait(key, nearby.is_late):
                opened.claims.release([key])
            found = nearby.get(key)
        if found is None:
            return None
        payload, is_from_peer = found
        self.tally.ahead(len(payload), is_from_peer=is_from_peer)
        return payload

    def _hold_to_budget(self, opened: _Open) -> None:
        """Shrink to the budget: a job with a larger one may have gone."""
        budget_bytes = opened.budget.bytes()
        if opened.store.payload_bytes() > budget_bytes:
            with contextlib.suppress(StoreFullError, StoreBusyError):
                opened.store.put([], budget_bytes)

    def get_block(self, key: bytes, number: int) -> bytes | None:
        """One block of an item, if it is in the cache. It is not counted."""
        opened = self._open()
        try:
            found = None if opened is None else opened.store.get_block(key, number)
            return self.disk.get_block(key, number) if found is None and self.disk is not None else found
        except OSError as error:
            self._give_up(error)
        except ItemDamagedError:
            assert opened is not None
            self._drop(key, opened)
        return None

    def _drop(self, key: bytes, opened: _Open) -> None:
        """Drop a damaged item. That makes room for it: it is read and kept again."""
        self.tally.fail(f"an item of the cache in {self.folder} is damaged")
        self._dropped.add(key)
        self._put(opened, [], [key])

    def _put(self, opened: _Open, items: Sequence[tuple[bytes, Bytes]], evicted: Sequence[bytes]) -> int:
        """Keep items in memory, and forget others. Returns how many are kept. What fails is counted."""
        try:
            return opened.store.put(items, opened.budget.bytes(), evicted)
        except (StoreFullError, StoreBusyError) as trouble:
            self.tally.fail(str(trouble))
        except OSError as error:
            self._give_up(error)
        return 0

    def room_bytes(self) -> int:
        """The longest item that there is room for now; less than 0 if nothing is kept."""
        room = self._room_in_memory()
        return room if self.disk is None else max(room, self.disk.room_bytes())

    def _room_in_memory(self) -> int:
        return self._ask(lambda opened: opened.budget.bytes() - opened.store.payload_bytes(), -1)

    def fetch(self, request: WantedItems, advice: Ruling | None = None) -> list[Bytes]:
        """All items of a request, from the cache or from storage. With advice, a policy has decided what is kept."""
        began = now()
        result: list[Any] = [self.get(key) for key in request.keys]
        missing = [position for position, found in enumerate(result) if found is None]
        if missing:
            self._fetch_missing(missing, request, result, advice)
        self.tally.spent(now() - began)
        return result

    def _fetch_missing(self, missing: list[int], request: WantedItems, result: list[Any], advice: Ruling | None) -> None:
        opened, keys = self._open(), request.keys
        evicted = advice.evicted if advice is not None else ()
        if opened is None:
            self._take_in(missing, [], request, result, ())
            return
        claims = opened.claims
        theirs: list[int] = []
        claimed: list[int] = []
        try:
            for position in self._worth_keeping(missing, request, advice):
                (claimed if claims.claim(keys[position]) else theirs).append(position)
            ours = [position for position in missing if position not in theirs]
            self._take_in(ours, claimed, request, result, evicted)
        finally:
            claims.release([keys[position] for position in missing if position not in theirs])
        for position in theirs:  # no claim is held while waiting for another process's claim
            try:
                nearby = staging.current()
                is_ours = claims.wait(keys[position], nearby.is_late if nearby is not None else None)
                self._take_in([position], [position] if is_ours else [], request, result, ())
            finally:
                claims.release([keys[position]])

    def _worth_keeping(self, missing: list[int], request: WantedItems, advice: Ruling | None) -> list[int]:
        if advice is not None:
            keys = request.keys
            return [position for position in missing if position in advice.admitted or keys[position] in self._dropped]
        room = self.room_bytes()
        if room <= 0:
            return []
        return [position for position, size in zip(missing, request.sizes(missing), strict=True) if size <= room]

    def _take_in(
        self, positions: list[int], claimed: list[int], request: WantedItems, result: list[Any], evicted: Sequence[bytes]
    ) -> None:
        """Read items that other processes have not put there meanwhile, and keep those that are claimed."""
        for position in positions:
            result[position] = self.get(request.keys[position])
        missing = [position for position in positions if result[position] is None]
        for position in missing:
            result[position] = self.staged(request.keys[position], waits=position not in claimed)
        unread = [position for position in missing if result[position] is None]
        if unread:
            for position, payload in zip(unread, request.read(unread), strict=True):
                result[position] = payload
                self.tally.miss(len(payload))
        keep = [position for position in missing if position in claimed and request.is_settled(position)]
        if keep or evicted:
            self._keep(keep, request, result, evicted)

    def _keep(self, positions: list[int], request: WantedItems, result: list[Any], evicted: Sequence[bytes]) -> None:
        opened = self._open()
        if opened is None:
            return
        items = [(request.keys[position], result[position]) for position in positions]
        room = 0 if self.disk is None else self._room_in_memory()
        near = [item for item in items if self.disk is None or len(item[1]) <= room]
        kept = self._put(opened, near, evicted) if near or evicted else 0
        if self.disk is not None and kept < len(items):
            kept += self.disk.put([item for item in items if self._size_in_memory(item[0]) is None])
        if kept:
            self._dropped.difference_update(request.keys)
            request.kept(positions)

    def damage(self) -> str:
        """What is wrong with the store, in words, to explain the death of a process that used it; "" if nothing is."""
        try:
            return "" if self.folder is None or self._lost else inspection.damage(self.folder)
        except OSError:
            return ""

    def stats(self) -> StoreStats | None:
        """What is in the cache; None if it cannot be used."""
        return self._ask(lambda opened: opened.store.stats(), None)

    def close(self) -> None:
        """Leave the cache. Later calls read from storage."""
        with self._lock:
            self._lost = True
            opened, self._opened = self._opened, None
            if opened is not None and opened.owner == os.getpid():
                opened.close()
            if self._membership is not None:
                self._membership.close()
            if self.disk is not None:
                self.disk.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open in this process. A worker opens the cache by itself, and does not count as another job."""
        return self.__dict__ | {"_membership": None, "_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
        _living.add(self)


_living: "weakref.WeakSet[Cache]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Make locks anew: another thread may have held them at the fork, and does not exist in the child."""
    for cache in list(_living):
        cache._lock = threading.RLock()
        cache._opened = None


forks.register(forks.Stage.LOCKS, after_in_child=_after_fork_in_child)
