"""Other hosts, as one loader's files are brought from there, and what this host keeps beside them.

An item that another host holds is not kept here as well, as long as something of the data is held nowhere. When all of it
is held, room that is left is filled with copies. Others are not told of copies: they are this host's own affair.
"""

import contextlib
import os
import random
import time

from stoker.keeper.directory import Numbers, numbers_of
from stoker.keeper.peering import Peering
from stoker.keeper.table import KeeperTable, shared_key

_LOOK_S = 0.5
_LOOK_PART = 0.05
"""Looking whether all is held takes no more than this part of the time."""


class Far:
    """For one loader: its files on other hosts."""

    def __init__(self, peering: Peering, table: KeeperTable, roots: tuple[str, ...]) -> None:
        self.peering = peering
        self._table, self._roots = table, roots
        self._names: Numbers | None = None
        self.look_again_s = _LOOK_S
        self._nowhere: set[bytes] = set()
        """Items that no host had when all were asked and have answered."""
        self._others = peering.others
        self.is_first_epoch = True
        """Then most items are held nowhere. Later ones are: who has something may not have told of it yet."""
        self.keeps_copies = False
        """Whether all data is held somewhere, so that there is room for copies."""

    def has(self, key: bytes) -> bool:
        """Whether another host should have an item, or may have it."""
        if self.peering.has_elsewhere(key):
            self._nowhere.discard(key)
            return True
        return not self.is_first_epoch and (key not in self._nowhere or self._others != self.peering.others)

    def fetch(self, key: bytes) -> bytes | None:
        """An item from another host."""
        if self.is_first_epoch or (key in self._nowhere and self._others == self.peering.others):
            return self.peering.fetch([key])[0]
        found, is_nowhere = self.peering.search(key)
        if self._others != self.peering.others:  # another host has come meanwhile
            self._others = self.peering.others
            self._nowhere.clear()
        elif is_nowhere:
            self._nowhere.add(key)
        return found

    def is_all_held(self) -> bool:
        """Look whether all data is held somewhere. `look_again_s` is when to look again: it may take long."""
        if self._names is None:
            paths = (self._table.path(index) for index in range(len(self._table)))
            self._names = numbers_of([shared_key(path, self._roots) or b"" for path in paths if path])
        began = time.thread_time()
        self.keeps_copies = bool(len(self._names)) and self.peering.covers(self._names)
        self.look_again_s = max(_LOOK_S, (time.thread_time() - began) / _LOOK_PART)
        return self.keeps_copies

    def order(self) -> list[int]:
        """All samples, in no order: what is copied first differs from host to host."""
        found = list(range(len(self._table)))
        random.Random(os.getpid()).shuffle(found)
        return found

    def entry(self, index: int) -> bytes:
        """Where a sample is, as the table has it."""
        return self._table.path(index)

    def kept(self, key: bytes, *, is_copy: bool) -> None:
        """An item is in this host's cache now."""
        with contextlib.suppress(OSError):
            (self.peering.copied if is_copy else self.peering.kept)([key])
