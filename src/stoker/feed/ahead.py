"""What a loader tells the keeper of its host: its cache and its files once, then each batch as it is ordered.

A hint costs a few microseconds and changes nothing: batches are the same without, and come later. Only what is ordered is
told, so nothing is drawn for it. Where a dataset does not list its files, workers note in the first epoch what they open
(`cache/notes`), and the keeper is told from the second on. Loaders without a cache tell nothing.
"""

import contextlib
import os
import weakref
from typing import Any

import numpy as np
import torch.utils.data

from stoker.cache.notes import MOST_SAMPLES, Notes
from stoker.cache.staging import Staging
from stoker.errors import warn
from stoker.feed.foretold import Foretold
from stoker.feed.meeting import AUTO, Meeting, introduction
from stoker.feed.progress import is_batched
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
from stoker.tensor.dataset import of_stoker
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
        document: dict[str, Any],
        staging: Staging,
        table: int,
        meter: Any,
        meeting: Meeting | None,
        foretold: Foretold | None,
        *,
        waits: bool,
    ) -> None:
        """With `waits`, nothing is known of the loader's files before workers have noted some."""
        self.staging, self._foretold = staging, foretold
        self._document, self._table = document, table
        self._peers: tuple[str, str] | None = (document["peers"], document["folder"]) if document["peers"] else None
        """How the other hosts are named, and for which cache."""
        self._meeting, self._began = meeting, now()
        self._line, self._meter = client.line(), meter
        self._sent = self._taken = 0
        self._is_told = False
        self._epochs = 0
        self._numbers: list[int] = []
        """The loader's number, once the keeper knows of it."""
        logs = [] if staging.notes is None else [staging.notes.log]
        self.close = weakref.finalize(self, _leave, self._line, self._numbers, table, [staging.memory, *logs])
        self.close.atexit = False
        if not waits:
            self._join()

    def _join(self) -> None:
        more: dict[str, int] = {}
        if self._foretold is not None and self._foretold.orders is not None:
            more["orders"] = self._foretold.orders.memory.descriptor
        if self.staging.notes is not None:
            more["notes"] = self.staging.notes.log.descriptor
        descriptors = [self.staging.memory.descriptor, self._table, *more.values()]
        self._numbers.append(self._line.join(self._document | {"more": list(more)}, descriptors))
        if self._meeting is not None:
            self._meeting.attend(self._line, self._numbers[0])

    def over(self) -> None:
        """An epoch is over, or another one begins: what was ordered before is not wanted any more."""
        if self._is_told:
            self._line.over(self._numbers[0], self._taken)
            self._is_told = False
            self._epochs += 1
            if self._peers is not None:
                self._say_if_peers_cannot_be_used()
        self._taken = self._sent
        notes = self.staging.notes
        if notes is not None:
            if self.staging.is_given_up:
                notes.stop()
            notes.settle()
            if not self._numbers and notes.has_lines:
                self._join()

    def _say_if_peers_cannot_be_used(self) -> None:
        assert self._peers is not None
        is_early = now() - self._began < EARLY_S
        why = trouble_with(*self._peers, is_early=is_early, is_first_epoch=self._epochs < 2)
        if why is not None:
            self._peers = None
            warn(why)

    def ordered(self, index: Any) -> None:
        """A work is ordered. Indices that are no numbers are not told."""
        self._sent += 1
        if not self._numbers:
            return
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
            if not self._is_told and self._taken and self._meeting is not None:
                self._meeting.meet()
            if not self._is_told and self._foretold is not None and self._foretold.orders is not None:
                self._line.epoch(self._numbers[0], self._foretold.begin(self._foretold.orders))
            self._is_told = True
            self._line.queued(self._numbers[0], self._sent - 1, self._taken, self._meter.wait_s, content)
        if self._meeting is not None:
            self._meeting.look()

    def took(self, works: int = 1) -> None:
        """The loop has got what so many works have made."""
        self._taken += works


def ahead_of(loader: Any) -> Ahead | None:
    """A loader's hints; None if it has none to give."""
    readers = _readers(loader)
    cache = loader.caching.cache
    streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if not readers or cache is None or cache.folder is None or loader.group is not None or streams:
        return None
    paths = paths_of(loader.dataset)
    is_by_reuse = loader.peers and loader.cache_policy == "reuse-distance"
    notes = None if is_by_reuse else _notes(loader, is_listed=bool(paths))
    if not paths and notes is None and not loader.peers:
        return None
    staging = Staging(_staging_bytes(), notes=notes)
    table = write_table(paths or _UNKNOWN)
    if table is None:
        return None
    told, meeting = introduction(loader.peers)
    foretold = Foretold(loader.sampler, _hosts(loader)) if is_by_reuse else None
    document = {
        "folder": str(cache.folder),
        "disk": "" if cache.disk is None else str(cache.disk.folder),
        "roots": _roots(loader),
        "fills": loader.cache_policy == "keep-first",
        "staging": staging.capacity_bytes,
        "readers": readers,
        "governed": _is_governed(loader),
        "rank": ranks.rank(),
        "reuse": {} if foretold is None else foretold.document() | {"capacity": loader.cache},
        **told,
    }
    if notes is not None:
        kind, samples = type(loader.dataset), len(loader.dataset)
        document |= {"files": f"{kind.__module__}.{kind.__qualname__} {samples}", "samples": samples}
    waits = not paths and not loader.peers
    return Ahead(document, staging, table, loader._meter, meeting, foretold, waits=waits)


def _hosts(loader: Any) -> int:
    """How many hosts there are: as many as are named, or as the launcher says."""
    if loader.peers != AUTO:
        return len(parse_addresses(loader.peers))
    return ranks.hosts() or int(loader.sampler.num_replicas)


def _notes(loader: Any, *, is_listed: bool) -> Notes | None:
    """Where workers note what they open. None if it is not the indices of a batch that say what is opened, one by one."""
    dataset = loader.dataset
    prepares_many = bool(getattr(dataset, "__getitems__", None)) and type(dataset) is not torch.utils.data.Subset
    if loader.caching.reads is None or not is_batched(loader) or prepares_many or of_stoker(dataset) is not None:
        return None
    try:
        samples = len(dataset)
        return Notes(samples, is_listed=is_listed) if 0 < samples <= MOST_SAMPLES else None
    except Exception:  # there is no memory, or of the user's: a dataset need not have a length
        return None


def _leave(line: Line, numbers: list[int], table: int, memories: list[Any]) -> None:
    if line.owner == os.getpid():
        for number in numbers:
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
    return list(reads.shared_roots) if reads is not None and reads.shared_roots else [os.sep]


def _staging_bytes() -> int:
    """Room for what the cache does not take; none where memory is short. Then the kernel keeps it in its page cache."""
    if os.environ.get("STOKER_STAGING") == "0":
        return 0
    found = min(_STAGING_BYTES, headroom_bytes() // _PART_OF_MEMORY)
    return found // 4096 * 4096 if found >= _LEAST_STAGING_BYTES else 0
