"""Records that are followed to their ends: what a loader told last is read even when the loader is gone.

A record that is only looked at now and then may be removed between two looks. A file that is open can still be read then.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from stoker.live import folder
from stoker.live.record import Facts, Seen, read_record

_SUMS = (
    *("batches", "samples", "wait_s", "prep_s", "fetch_s", "hits", "misses", "bytes_cache", "bytes_storage", "faults"),
    *("remote", "remote_bytes"),
)


class Following:
    """The records of some loaders, from when they are first seen until they are gone, and then the last of them."""

    def __init__(self, is_wanted: Callable[[Facts], bool]) -> None:
        self._is_wanted = is_wanted
        self._open: dict[str, tuple[Facts, int]] = {}
        self._seen: dict[str, Seen] = {}

    def look(self) -> Sequence[Seen]:
        """What each of them has told, the last words of those that are gone included."""
        living = folder.loaders()
        for token, seen in living.items():
            if token not in self._open and self._is_wanted(seen.facts):
                self._seen[token] = seen
                with contextlib.suppress(OSError):  # it has just gone
                    self._open[token] = seen.facts, folder.open_record(token)
        for token, (facts, descriptor) in list(self._open.items()):
            told = read_record(partial(folder.read, descriptor), facts)
            if told is not None:
                self._seen[token] = _with_lasting_role(told, self._seen.get(token))
            if token not in living:
                os.close(self._open.pop(token)[1])
        return list(self._seen.values())

    def close(self) -> None:
        """Look no more."""
        while self._open:
            os.close(self._open.popitem()[1][1])


def training(records: Sequence[Seen]) -> Seen | None:
    """What the training loader tells: the one with most samples of those that do more than evaluate.

    If the script makes it anew for each epoch, then all of these in turn count as one loader.
    """
    some = [seen for seen in records if seen.role != "eval"]
    if not some:
        return None
    largest = max(some, key=lambda seen: seen.samples)
    same = sorted((seen for seen in some if _likeness(seen) == _likeness(largest)), key=lambda seen: seen.facts.made_at)
    if any(before.left_at > after.facts.made_at for before, after in pairwise(same)):
        return largest  # they are used by turns: these are different loaders
    sums = {name: sum(getattr(seen, name) for seen in same) for name in _SUMS}
    return replace(same[-1], left_at=max(seen.left_at for seen in same), **sums)  # the newest may have given nothing yet


def _likeness(seen: Seen) -> tuple[object, ...]:
    facts = seen.facts
    return facts.pid, facts.rank, facts.dataset, facts.cache, seen.epoch_length, seen.role


def _with_lasting_role(told: Seen, before: Seen | None) -> Seen:
    """A loader that has trained stays one that trains, also if the script evaluates with it later."""
    if before is not None and before.batches and told.role == "eval":
        return replace(told, role=before.role)
    return told
