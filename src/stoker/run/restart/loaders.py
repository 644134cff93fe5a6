"""The loaders of a script as they are iterated: which is which over restarts, and which of them updates depend on.

A loader is known by what it goes over, and by where in the script it is iterated first. So one that is made anew for every
epoch is the same one. An epoch takes part in training if one of its batches came before each update since it began.
"""

import contextlib
import json
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from stoker.feed.progress import generator_text, own_generator, set_generator
from stoker.order import length_of
from stoker.run.restart.contents import written
from stoker.run.restart.followed import Followed
from stoker.run.restart.lookahead import Lookahead
from stoker.run.restart.loops import Surroundings
from stoker.run.restart.record import LoaderRecord, Position
from stoker.run.restart.rounds import Rounds, watch_rounds

NOW_AND_THEN = "a loader is read before some updates and not before others, and would begin anew"
TOO_FAR_AHEAD = "too many batches are read ahead"
_SEPARATOR = " iterated as number "
ENDLESS = "the loader has no end, and its order is not drawn by a BatchSampler of torch's"


def described_by(loader: Any) -> str:
    """What a loader goes over, and how."""
    try:
        order = json.dumps(loader._route().describe(), sort_keys=True)
    except Exception:  # a dataset that cannot tell its length, say
        order = ""
    names = [type(part).__name__ for part in (loader.dataset, loader.sampler, loader.batch_sampler)]
    return " ".join([*names, f"{length_of(loader)} batches", order])


class Loaders:
    """All loaders that the script has iterated."""

    def __init__(self) -> None:
        self._keys: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._rounds: weakref.WeakKeyDictionary[Any, Rounds | None] = weakref.WeakKeyDictionary()
        self._open: weakref.WeakSet[Followed] = weakref.WeakSet()
        self._latest: dict[str, weakref.ref[Followed]] = {}
        self._loader: dict[str, Any] = {}
        """The loader of the latest epoch, which may have no other owner any more when its state is asked for."""
        self._counts: dict[str, Lookahead] = {}
        self._expected: list[str] = []
        self.pending: dict[str, LoaderRecord] = {}
        """What loaders go on from that were not iterated since the script was started again."""
        self._reads_ahead: dict[str, bool] = {}
        """Whether batches are read before the update of those before, as far as is known."""
        self._epochs: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self.trains: tuple[str, ...] = ()
        """The loaders whose batches came before the last update."""

    def made(self, loader: Any) -> None:
        """A loader was made."""
        self._rounds[loader] = watch_rounds(loader)

    def begin(self, listener: Any, loader: Any, iterate: Any, where: str) -> Followed:
        """An epoch of a loader is asked for, somewhere in the script."""
        key = self._key_of(loader, where)
        number = self._epochs[key] = self._epochs.get(key, 0) + 1
        followed = Followed(listener, loader, iterate, key, number, self._rounds.get(loader))
        is_new = number == 1 or key in self._first
        followed.keep_states(self._reads_ahead.get(key, is_new))
        return followed

    def _key_of(self, loader: Any, where: str) -> str:
        """What a loader is known by: what it goes over, and where it was iterated first."""
        key = self._keys.get(loader)
        if key is None:
            described = described_by(loader)
            beside = {id(other.loader): other.key for other in self._open if not other.has_ended}
            number = sum(other.startswith(described) for other in beside.values())
            key = self._keys[loader] = self._known_as(f"{described}{_SEPARATOR}{number} {where}")
        return key

    def _known_as(self, key: str) -> str:
        """What a checkpoint calls a loader: the script may have been edited around the place that iterates it."""
        alike = [other for other in self._expected if other.split(_SEPARATOR)[0] == key.split(_SEPARATOR)[0]]
        return alike[0] if len(alike) == 1 and key not in self._expected else key

    def expect(self, position: Position) -> None:
        """A script that was started again will iterate the loaders that it had."""
        self._expected = list(position.loaders)

    def started(self, followed: Followed, backwards: int) -> None:
        """Count the batches of an epoch from now on."""
        self._counts.setdefault(followed.key, Lookahead()).begin(backwards)
        self._latest[followed.key] = weakref.ref(followed)
        self._loader[followed.key] = followed.loader
        self._open.add(followed)

    def ended(self, followed: Followed) -> None:
        """An epoch has no more batches."""
        self._counts[followed.key].end(followed.in_round)

    def went_round(self, followed: Followed, backwards: int) -> None:
        """An epoch has no more batches, and the next one has begun."""
        counts = self._counts[followed.key]
        counts.end(followed.in_round)
        counts.begin(backwards)

    def updated(self) -> None:
        """An update was made."""
        part = []
        for followed in self._open:
            if followed.was_asked and (followed.updates or not followed.has_ended):
                followed.updates += 1
                followed.updates_in_round += 1
                self._first.setdefault(followed.key, followed.number)
                if not followed.misses:
                    part.append(followed.key)
            elif not followed.has_ended:
                followed.misses += 1
            followed.was_asked = False
        self.trains = tuple(sorted(part))

    def iteration_over(self, backwards: int) -> None:
        """All that belongs to the last update was done."""
        for key in self.trains:
            followed, counts = self._followed(key), self._counts[key]
            if followed is not None and followed.updates_in_round:
                counts.updated(followed.in_round, backwards)
                if (ahead := counts.ahead) is not None and self._reads_ahead.get(key) != bool(ahead):
                    self._reads_ahead[key] = bool(ahead)
                    followed.keep_states(bool(ahead))

    @property
    def may_be_ahead(self) -> bool:
        """Whether batches are read ahead, as far as is known."""
        return any(self._counts[key].ahead != 0 for key in self.trains)

    def obstacle(self) -> str:
        """Why there is no position to go on from now; empty if there is."""
        if any(not other.has_ended and other.misses and other.updates > 1 for other in self._open):
            return NOW_AND_THEN
        for key in self.trains:
            counts, followed = self._counts[key], self._followed(key)
            if counts.ahead is None:
                return counts.why
            if followed is not None and not followed.can_take_back(counts.ahead):
                return TOO_FAR_AHEAD
            if followed is not None and followed.is_endless and followed.rounds is None:
                return ENDLESS
        return ""

    def _followed(self, key: str) -> Followed | None:
        """The latest epoch of a loader, while it is in use."""
        return self._latest[key]() if key in self._latest else None

    def records(self, *, at_end: bool = False) -> dict[str, LoaderRecord]:
        """How far all loaders are."""
        return {key: self._record(key, epochs, at_end) for key, epochs in self._epochs.items()}

    def _record(self, key: str, epochs: int, at_end: bool) -> LoaderRecord:
        if key in self.pending:
            return self.pending[key]
        first, followed, loader = self._first.get(key), self._followed(key), self._loader.get(key)
        if key in self.trains and (at_end or followed is None or followed.has_ended):
            return LoaderRecord(epochs, first, written(self._loader[key].state_dict()))
        if followed is not None and not followed.has_ended:
            ahead = self._counts[key].ahead or 0 if key in self.trains else 0
            is_used = key in self.trains or followed.given
            return followed.record(ahead, epochs, first) if is_used else LoaderRecord(epochs, first)
        own = None if loader is None else own_generator(loader)
        text = None if own is None else generator_text(own)
        return LoaderRecord(epochs, first, is_over=loader is not None, generator=text)

    def set_back(self, around: Surroundings) -> Surroundings:
        """Loops that count batches, as they were before those that were read ahead."""
        for key in self.trains:
            followed, ahead = self._followed(key), self._counts[key].ahead
            if followed is not None and ahead:
                around = around.less(ahead, followed.before + followed.in_round)
        return around

    def batches_in_epoch(self) -> int | None:
        """How many batches an epoch of training has, if that is known."""
        lengths = (followed.length for key in self.trains if (followed := self._followed(key)) is not None)
        return next((length for length in lengths if length is not None), None)

    def state_for(self, followed: Followed) -> dict[str, Any] | None:
        """The state that an epoch goes on from, if it was interrupted."""
        record = self.pending.get(followed.key)
        return None if record is None else record.state

    @contextlib.contextmanager
    def prepared(self, followed: Followed) -> Iterator[None]:
        """Have a loader that does not train draw what it would have drawn, had the script not been started again."""
        loader, record = followed.loader, self.pending.pop(followed.key, None)
        own, is_over = own_generator(loader), record is not None and record.is_over
        if record is not None and own is not None and record.generator is not None:
            set_generator(own, record.generator)
        if is_over and own is None and loader.num_workers and loader.persistent_workers:
            loader.generator = torch.Generator()  # these workers have been started before, so nothing is drawn for that
            try:
                yield
            finally:
                loader.generator = None
        else:
            yield

    def go_on(self, position: Position) -> None:
        """Go on counting from a position."""
        for key, record in position.loaders.items():
            self._epochs[key] = record.epochs + (position.is_past and key in position.trains)
            if record.first is not None:
                self._first[key] = record.first
