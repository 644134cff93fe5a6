"""A job's use of a disk tier: what does not fit into memory is kept there, and found there again, also after a reboot.

It works in any process of the job, and never makes it fail: an error is counted, and the bytes come from storage.
"""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from stoker.cache import places
from stoker.cache.disk import OpenDiskTier
from stoker.cache.inspection import StoreStats
from stoker.cache.shelf import DISK, Budget, CacheUse, Shelf
from stoker.cache.store import StoreBusyError, StoreFullError
from stoker.host import forks
from stoker.memory import Bytes
from stoker.meter import Tally
from stoker.sealed import ItemDamagedError
from stoker.units import parse_place

T = TypeVar("T")


class DiskTier:
    """A disk tier in a folder, as the processes of one job use it."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder = folder
        self._tally = tally
        self._join: tuple[str, str] | None = None
        self._membership: CacheUse | None = None
        self._opened: tuple[int, OpenDiskTier] | None = None
        self._is_lost = False
        self._lock = threading.RLock()
        _living.add(self)

    @classmethod
    def joined(cls, name: str, place: str, tally: Tally, *, is_private: bool = False) -> Self | None:
        """Join the tier of a name, in a place that is written DIR:SIZE. None where that is not possible."""
        directory, capacity_bytes = parse_place(place, "cache_disk")
        try:
            membership = Shelf(directory).join(name, capacity_bytes, is_private=is_private, tier=DISK)
        except OSError as error:
            tally.fail(f"the disk tier in {directory} cannot be used: {error}")
            return None
        places.remember(Path(directory).resolve())
        if membership.damage:
            tally.fail(f"{membership.damage}. Its index is made anew")
        tier = cls(membership.folder, tally)
        tier._membership = membership
        tier._join = None if is_private else (name, place)
        return tier

    def _open(self) -> OpenDiskTier | None:
        opened = self._opened
        if opened is not None and opened[0] == os.getpid():
            return opened[1]
        with self._lock:
            if self._is_lost:
                return None
            if self._opened is None or self._opened[0] != os.getpid():
                try:
                    self._rejoin()
                    self._opened = os.getpid(), OpenDiskTier(self.folder)
                except OSError as error:
                    self._give_up(error)
                    return None
            return self._opened[1]

    def _rejoin(self) -> None:
        """Join for the job if the process that did has gone, but this one goes on."""
        if self._join is not None:
            name, place = self._join
            directory, capacity_bytes = parse_place(place)
            if Budget(self.folder).bytes() < capacity_bytes:
                self._membership = Shelf(directory).join(name, capacity_bytes, tier=DISK)

    def _give_up(self, error: OSError) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._opened = None
            self._tally.fail(f"the disk tier in {self.folder} cannot be used: {error}")

    def _try(self, act: Callable[[OpenDiskTier], T], otherwise: T, key: bytes = b"") -> T:
        """Do something with the tier. What fails is counted, and a damaged item is dropped."""
        disk = self._open()
        if disk is None:
            return otherwise
        try:
            try:
                return act(disk)
            except ItemDamagedError:
                self._tally.fail(f"an item of the disk tier in {self.folder} is damaged")
                if key:
                    disk.drop(key)
            except (StoreFullError, StoreBusyError) as trouble:
                self._tally.fail(str(trouble))
        except OSError as error:
            self._give_up(error)
        return otherwise

    def size(self, key: bytes) -> int | None:
        """How many bytes an item has; None if it is not there."""
        return self._try(lambda disk: disk.size(key), None, key)

    def get(self, key: bytes) -> Bytes | None:
        """An item; None if it is not there. It is not counted."""
        return self._try(lambda disk: disk.get(key), None, key)

    def get_block(self, key: bytes, number: int) -> bytes | None:
        """One block of an item."""
        return self._try(lambda disk: disk.get_block(key, number), None, key)

    def room_bytes(self) -> int:
        """The longest item that there is room for now; less than 0 if nothing is kept."""
        return self._try(lambda disk: disk.room_bytes(), -1)

    def put(self, items: Sequence[tuple[bytes, Bytes]]) -> int:
        """Keep items that fit. Returns how many."""
        return self._try(lambda disk: disk.put(items), 0)

    def stats(self) -> StoreStats | None:
        """What is in the tier; None if it cannot be used."""
        return self._try(lambda disk: disk.stats(), None)

    def close(self) -> None:
        """Leave the tier."""
        with self._lock:
            self._is_lost = True
            opened, self._opened = self._opened, None
            if opened is not None and opened[0] == os.getpid():
                opened[1].close()
            if self._membership is not None:
                self._membership.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open in this process."""
        return self.__dict__ | {"_membership": None, "_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
        _living.add(self)


_living: "weakref.WeakSet[DiskTier]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Make locks anew: another thread may have held them at the fork, and does not exist in the child."""
    for tier in list(_living):
        tier._lock = threading.RLock()
        tier._opened = None


forks.register(forks.Stage.LOCKS, after_in_child=_after_fork_in_child)
