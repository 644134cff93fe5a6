"""A job's use of a cache: what is there comes from there, what is not is read once and kept if it fits.

`fetch` is the whole of it. It works in any process of the job, and never fails on account of the cache: whatever goes
wrong with it is counted, and the bytes come from storage.
"""

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.cache import store
from stoker.cache.claims import Claims
from stoker.cache.shelf import Budget, Membership, Shelf
from stoker.cache.store import Store, StoreFullError, StoreStats
from stoker.meter import Tally, now
from stoker.source.reading import Bytes

_LOOK_EVERY = 256
"""After so many items one looks whether the cache has been removed; whoever writes notices at once."""


class Request(Protocol):
    """Items that are wanted together, and how to get them from storage. Positions count within the request."""

    keys: list[bytes]

    def sizes(self, positions: list[int]) -> Sequence[int]:
        """How many bytes they have."""

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        """Read them from storage."""

    def kept(self, positions: list[int]) -> None:
        """They are in the cache now, and nobody needs another copy."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a policy has decided on a request, where the order of all requests is known."""

    admitted: Collection[int]
    """The positions to be kept if they are not there yet."""
    evicted: Sequence[bytes]
    """The keys to be forgotten for them."""


class _Open:
    """What one process has of a cache."""

    def __init__(self, folder: Path) -> None:
        self.owner = os.getpid()
        self.budget = Budget(folder)
        self.budget.bytes()
        self.store: Store = store.opened(folder)
        self.claims = Claims(folder / "claims")


class Cache:
    """The cache of a name, for one job. Travels to its workers. A private one is no other job's, and ends with this one."""

    def __init__(
        self,
        name: str,
        capacity_bytes: int,
        directory: str | os.PathLike[str] | None = None,
        *,
        is_private: bool = False,
    ) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.directory = directory
        self.tally = Tally()
        self.folder: Path | None = None
        self._membership: Membership | None = None
        self._opened: _Open | None = None
        self._lost = False
        self._gets = 0
        self._lock = threading.Lock()
        try:
            self._membership = Shelf(directory).join(name, capacity_bytes, is_private=is_private)
            self.folder = self._membership.folder
        except OSError as error:
            self._give_up(f"the cache cannot be used: {error}")

    def _give_up(self, why: str) -> None:
        """From now on, storage."""
        self._lost = True
        self._opened = None
        self.tally.fail(why)

    def _open(self) -> _Open | None:
        opened = self._opened
        if opened is not None and opened.owner == os.getpid():
            return opened
        with self._lock:
            if self._lost or self.folder is None:
                return None
            if self._opened is None or self._opened.owner != os.getpid():
                try:
                    self._opened = _Open(self.folder)
                except Exception as error:  # LMDB has errors of its own
                    self._give_up(f"the cache in {self.folder} cannot be opened: {error}")
            return self._opened

    def holds(self, key: bytes) -> bool:
        """Whether an item is in the cache."""
        opened = self._open()
        return opened is not None and opened.store.holds(key)

    def get(self, key: bytes) -> bytes | None:
        """An item, if it is there, which counts as a hit."""
        opened = self._open()
        if opened is None:
            return None
        self._gets += 1
        if self._gets % _LOOK_EVERY == 0 and not opened.store.is_there():
            self._give_up(f"the cache in {self.folder} has been removed")
            return None
        found = opened.store.get(key)
        if found is not None:
            self.tally.hit(len(found))
        return found

    def has_room(self, size: int) -> bool:
        """Whether an item of a size would be kept, as far as one can tell now."""
        opened = self._open()
        if opened is None:
            return False
        try:
            return opened.store.payload_bytes() + size <= opened.budget.bytes()
        except OSError:
            self._give_up(f"the cache in {self.folder} has been removed")
            return False

    def fetch(self, request: Request, advice: Advice | None = None) -> list[Bytes]:
        """All items of a request, from the cache or from storage. With advice, a policy has decided what is kept."""
        began = now()
        result: list[Any] = [self.get(key) for key in request.keys]
        missing = [position for position, found in enumerate(result) if found is None]
        if missing:
            evicted = advice.evicted if advice is not None else ()
            opened = self._open()
            claimed: list[int] = []
            theirs: list[int] = []
            if opened is not None:
                for position in self._worth_keeping(missing, request, advice):
                    (claimed if opened.claims.claim(request.keys[position]) else theirs).append(position)
            ours = [position for position in missing if position not in theirs]
            self._take_in(ours, claimed, request, result, evicted)
            for position in theirs:  # no claim is held while one waits for another's
                claimed = [position] if opened is not None and opened.claims.wait(request.keys[position]) else []
                self._take_in([position], claimed, request, result, ())
        self.tally.spent(now() - began)
        return result

    def _worth_keeping(self, missing: list[int], request: Request, advice: Advice | None) -> list[int]:
        if advice is not None:
            return [position for position in missing if position in advice.admitted]
        return [position for position, size in zip(missing, request.sizes(missing), strict=True) if self.has_room(size)]

    def _take_in(
        self,
        positions: list[int],
        claimed: list[int],
        request: Request,
        result: list[Any],
        evicted: Sequence[bytes],
    ) -> None:
        """Read what others have not kept since we looked; keep what is claimed."""
        opened = self._open()
        try:
            for position in positions:
                result[position] = self.get(request.keys[position])
            unread = [position for position in positions if result[position] is None]
            if unread:
                for position, payload in zip(unread, request.read(unread), strict=True):
                    result[position] = payload
                    self.tally.miss(len(payload))
            keep = [position for position in unread if position in claimed]
            if opened is not None and (keep or evicted):
                self._keep(opened, keep, request, result, evicted)
        finally:
            if opened is not None:
                opened.claims.release([request.keys[position] for position in claimed])

    def _keep(
        self, opened: _Open, positions: list[int], request: Request, result: list[Any], evicted: Sequence[bytes]
    ) -> None:
        items = [(request.keys[position], result[position]) for position in positions]
        try:
            kept = opened.store.put(items, opened.budget.bytes(), evicted)
        except StoreFullError as full:
            self.tally.fail(str(full))
        except OSError as error:
            self._give_up(f"the cache in {self.folder} is lost: {error}")
        else:
            if kept:
                request.kept(positions)

    def stats(self) -> StoreStats | None:
        """What is in it, as far as it can be used."""
        opened = self._open()
        return None if opened is None else opened.store.stats()

    def close(self) -> None:
        """The job needs it no more."""
        if self._membership is not None:
            self._membership.close()

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs: it opens the cache by itself, and the job is counted once."""
        return self.__dict__ | {"_membership": None, "_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def read_plainly(request: Request, tally: Tally) -> list[Bytes]:
    """All items of a request from storage."""
    began = now()
    result = list(request.read(list(range(len(request.keys)))))
    for payload in result:
        tally.miss(len(payload), is_looked_for=False)
    tally.spent(now() - began)
    return result
