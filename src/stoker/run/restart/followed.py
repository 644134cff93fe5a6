"""Stands between a loader's iterator and the script's loop, and tells when a batch is asked for, or an epoch ends.

If the length of the epoch is known, it does not tell of the request after the last batch: code after the loop belongs to
the last iteration. While a restarted script is on its way, the loader's own iterator is made at the first request.
"""

from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Protocol

from stoker.checkpoint.snapshot import generator_states, generators, set_generators
from stoker.order import length_of
from stoker.run.restart.contents import written
from stoker.run.restart.record import LoaderRecord
from stoker.run.restart.rounds import Rounds

_MOST_AHEAD = 16


class Listener(Protocol):
    """The object that a followed iterator calls."""

    def asked(self, followed: "Followed") -> None:
        """A batch is asked for."""

    def ended(self, followed: "Followed") -> None:
        """The epoch has no more batches."""

    def went_round(self, followed: "Followed") -> None:
        """An epoch is over, and the loader has begun the next one without an end."""


class Followed:
    """A loader's iterator, over one epoch."""

    def __init__(
        self, listener: Listener, loader: Any, iterate: Callable[[], Any], key: str, number: int, rounds: Rounds | None
    ) -> None:
        self.loader, self.key, self.number, self.rounds = loader, key, number, rounds
        self.given = 0
        """Batches since it began, or went on."""
        self.before = 0
        """Batches of this time through that were given before it went on."""
        self._skipped = 0
        """Batches that its iterator has skipped."""
        self.has_ended = False
        self.was_asked = False
        """Whether it was asked for a batch since the last update."""
        self.updates = self.updates_in_round = 0
        """How many updates have followed its batches, in all and since this time through began."""
        self.misses = 0
        """How many updates were made without a batch of it."""
        self.left: int | None = None
        """After so many batches it ends, even if the loader has more."""
        self.length = length_of(loader)
        self._keeps_states = True
        self.begun_in: tuple[CodeType, int] | None = None
        """The script's function that asked for it, and where in it."""
        self._reads_here = loader.num_workers == 0
        self._listener = listener
        self._iterate = iterate
        self._iterator: Any = None
        self._samples: deque[int] = deque(maxlen=_MOST_AHEAD + 1)
        self._states: deque[Any] = deque(maxlen=_MOST_AHEAD)
        self._replayed: list[str] = []
        self._rounds_over = 0
        """Batches of those times through that are over."""
        self.is_endless = False

    def start(self, record: LoaderRecord | None = None) -> None:
        """Make the loader's own iterator, which goes on from a record if there is one."""
        if self.rounds is not None:
            self.rounds.begin([(first, text) for first, text in record.rounds] if record is not None else None)
        if record is not None:
            self.before, self._skipped, self.is_endless = record.batches, record.skipped, record.is_endless
            self._replayed = list(record.ahead) if self._reads_here else []
        self._iterator = self._iterate()
        self._note()

    @property
    def has_started(self) -> bool:
        """Whether the loader's own iterator was made."""
        return self._iterator is not None

    @property
    def in_round(self) -> int:
        """Batches since this time through the loader's samples began, or went on."""
        return self.given - self._rounds_over

    def record(self, ahead: int, epochs: int, first: int | None) -> LoaderRecord:
        """What is needed to go on from before the last so many batches that it gave."""
        state: dict[str, Any] = self.loader.state_dict()
        used = self._skipped + self.given - ahead
        rounds: tuple[tuple[int, str], ...] = ()
        if self.rounds is not None and (starts := self.rounds.since(used)):
            used -= starts[0][0]
            rounds = tuple((first - starts[0][0], text) for first, text in starts)
        if ahead or self.is_endless:
            state |= {"_num_yielded": used, "_sampler_iter_yielded": used, "batches": used}
            state["samples"] = self._samples[-1 - ahead]
        batches = used % self.length if self.is_endless and self.length else used
        states = self._states_ahead(ahead)
        return LoaderRecord(epochs, first, written(state), batches, used, states, rounds, self.is_endless)

    def _states_ahead(self, ahead: int) -> tuple[str, ...]:
        """The generators before each of the last batches."""
        if not ahead or not self._reads_here:
            return ()
        return tuple(state if isinstance(state, str) else generators(state) for state in list(self._states)[-ahead:])

    def keep_states(self, wanted: bool) -> None:
        """Say whether batches may be read ahead: then the generators before each of them are kept."""
        if not wanted:
            self._samples.clear()
            self._states.clear()
        self._keeps_states = wanted

    def can_take_back(self, ahead: int) -> bool:
        """Whether the generators before so many batches are known."""
        return ahead == 0 or (len(self._samples) > ahead and (not self._reads_here or len(self._states) >= ahead))

    def _note(self) -> None:
        if self._keeps_states:
            self._samples.append(self.loader._progress.samples)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.left == 0:
            raise StopIteration
        is_over = self.length is not None and self.before + self.in_round == self.length
        if is_over and self.is_endless:
            self._go_round()
            is_over = False
        if not is_over:
            self._listener.asked(self)
        replayed = self._replayed.pop(0) if self._replayed else None
        if replayed is not None:
            now = generators()
            set_generators(replayed)
        if self._keeps_states and self._reads_here:
            self._states.append(replayed or generator_states())
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.has_ended = True
            self._listener.ended(self)
            raise
        if replayed is not None:
            set_generators(now)
        if is_over:
            self.is_endless = True
            self._go_round()
        self.given += 1
        self._note()
        if self.left is not None:
            self.left -= 1
        return batch

    def _go_round(self) -> None:
        self._listener.went_round(self)
        self._rounds_over, self.before, self.updates_in_round = self.given, 0, 0

    def __len__(self) -> int:
        return len(self._iterator) if self.has_started else len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("_iterator") is None:
            raise AttributeError(name)
        return getattr(self._iterator, name)
