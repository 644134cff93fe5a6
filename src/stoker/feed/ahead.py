"""What a loader tells the keeper of its host: its cache and its files once, then each batch as it is ordered.

A hint costs a few microseconds and changes nothing: batches are the same without, and come later. Only what is ordered is
told, so nothing is drawn for it. Loaders without a cache, or whose files are not known, tell nothing.
"""

import contextlib
import os
import warnings
import weakref
from typing import Any

import numpy as np
import torch.utils.data

from stoker.cache.staging import Staging
from stoker.feed.foretold import Foretold
from stoker.feed.meeting import AUTO, Meeting, introduction
from stoker.feed.tables import paths_of
from stoker.host import ranks
from stoker.host.headroom import headroom_bytes
from stoker.keeper import client
from stoker.keeper.client import Line
from stoker.keeper.table import write_table
from stoker.keeper.view import trouble_with
from stoker.meter import now
from stoker.plan import READERS
from stoker.pool.work import Work
from stoker.wire.addresses import parse_addresses

EARLY_S = 10.0
"""Hosts of one job start within such a time, or something is wrong."""
_STAGING_BYTES = 256 << 20
_LEAST_STAGING_BYTES = 16 << 20
_PART_OF_MEMORY = 16
_MOST_BYTES = 4 * 32768
"""So many indices of a batch are told. A packet has to fit into the buffer of a socket."""
_UNKNOWN = ["", ""]
"""Files that are not known before they are opened. Workers ask for them then."""


class Ahead:
    """A loader's hints. Works are numbered from the first that this loader ever ordered."""

    def __init__(
        self,
        line: Line,
        loader: int,
        staging: Staging,
        table: int,
        meter: Any,
        peers: tuple[str, str],
        meeting: Meeting | None,
        foretold: Foretold | None,
    ) -> None:
        self.staging, self._foretold = staging, foretold
        self._peers: tuple[str, str] | None = peers if peers[0] else None
        """How the other hosts are named, and for which cache."""
        self._meeting, self._began = meeting, now()
        self._line, self._loader, self._meter = line, loader, meter
        self._sent = self._taken = 0
        self._is_told = False
        self.close = weakref.finalize(self, _leave, line, loader, table, staging.memory)
        self.close.atexit = False

    def over(self) -> None:
        """An epoch is over, or another one begins: what was ordered before is not wanted any more."""
        if self._is_told:
            self._line.over(self._loader, self._taken)
            self._is_told = False
            if self._peers is not None:
                self._say_if_peers_cannot_be_used()
        self._taken = self._sent

    def _say_if_peers_cannot_be_used(self) -> None:
        assert self._peers is not None
        why = trouble_with(*self._peers, is_early=now() - self._began < EARLY_S)
        if why is not None:
            self._peers = None
            warnings.warn(why, stacklevel=5)

    def ordered(self, index: Any) -> None:
        """A work is ordered. Indices that are no numbers are not told."""
        ids = index.ids if type(index) is Work else index
        try:
            if type(ids) is bytes:
                ids = np.frombuffer(ids, np.int64)
            elif isinstance(ids, int):  # there are no batches
                ids = (ids,)
            content = np.asarray(ids, np.int64).astype(np.uint32).tobytes()[:_MOST_BYTES]
        except Exception:  # of the user's: indices may be anything
            content = b""
        if content:
            if not self._is_told and self._foretold is not None and self._foretold.orders is not None:
                self._line.epoch(self._loader, self._foretold.begin(self._foretold.orders))
            self._is_told = True
            self._line.queued(self._loader, self._sent, self._taken, self._meter.wait_s, content)
        self._sent += 1
        if self._meeting is not None:
            self._meeting.look()

    def took(self, works: int = 1) -> None:
        """The loop has got what so many works have made."""
        self._taken += works


class Silent:
    """The hints of a loader that has none to give."""

    def over(self) -> None:
        """Nothing was ordered."""

    def ordered(self, index: Any) -> None:
        """Nobody is told."""

    def took(self, works: int = 1) -> None:
        """Nobody is told."""


SILENT = Silent()


def ahead_of(loader: Any) -> Ahead | None:
    """A loader's hints; None if it has none to give."""
    readers = _readers(loader)
    cache = loader.caching.cache
    streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if not readers or cache is None or cache.folder is None or loader.group is not None or streams:
        return None
    paths = paths_of(loader.dataset)
    if not paths:
        if not loader.peers:
            return None
        paths = _UNKNOWN
    staging = Staging(_staging_bytes())
    table = write_table(paths)
    if table is None:
        return None
    told, meeting = introduction(loader.peers)
    foretold, descriptors = None, [staging.memory.descriptor, table]
    if loader.peers and loader.cache_policy == "reuse-distance":
        foretold = Foretold(loader.sampler, _hosts(loader))
        if foretold.orders is not None:
            descriptors.append(foretold.orders.memory.descriptor)
    document = {
        "folder": str(cache.folder),
        "roots": _roots(loader),
        "fills": loader.cache_policy == "keep-first",
        "staging": staging.capacity_bytes,
        "readers": readers,
        "governed": _is_governed(loader),
        "rank": ranks.rank(),
        "reuse": {} if foretold is None else foretold.document() | {"capacity": loader.cache},
        **told,
    }
    line = client.line()
    number = line.join(document, descriptors)
    if meeting is not None:
        meeting.attend(line, number)
    return Ahead(line, number, staging, table, loader._meter, (told["peers"], str(cache.folder)), meeting, foretold)


def _hosts(loader: Any) -> int:
    """How many hosts there are: as many as are named, or as the launcher says."""
    if loader.peers != AUTO:
        return len(parse_addresses(loader.peers))
    return ranks.hosts() or int(loader.sampler.num_replicas)


def _leave(line: Line, number: int, table: int, memory: Any) -> None:
    if line.owner == os.getpid():
        with contextlib.suppress(OSError):
            line.leave(number)
        os.close(table)


def _readers(loader: Any) -> int:
    """How many readers are asked for: by the environment, the plan, or nobody."""
    said = os.environ.get("STOKER_READERS", "")
    if said.isascii() and said.isdigit():
        return int(said)
    planned = loader._options.readers
    return READERS if planned is None else int(planned)


def _is_governed(loader: Any) -> bool:
    return loader._options.moves_readers is not False


def _roots(loader: Any) -> list[str]:
    reads = loader.caching.reads
    return list(reads.roots) if reads is not None and reads.roots else [os.sep]


def _staging_bytes() -> int:
    """Room for what the cache does not take; none where memory is short. Then the kernel keeps it in its page cache."""
    if os.environ.get("STOKER_STAGING") == "0":
        return 0
    found = min(_STAGING_BYTES, headroom_bytes() // _PART_OF_MEMORY)
    return found // 4096 * 4096 if found >= _LEAST_STAGING_BYTES else 0
