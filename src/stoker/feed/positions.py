"""How far each worker's stream was seen by the training loop, and which states belong to that.

A position belongs to one iterator, outlives it, and is asked by the loader's `state_dict()`. States lie here as they came
from the worker, and are opened only when somebody asks.
"""

import copy
import pickle
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from stoker.batch import unpack
from stoker.feed.sampled import Sampled
from stoker.pool.start import StreamStart
from stoker.pool.stateful import AskedStates, ask, is_stateful
from stoker.pool.webdatasets import counted
from stoker.pool.work import Report
from stoker.slots.inbox import Inbox

Part = dict[str, Any]
"""The part of a loader's state that is about states of others."""


class ArrivedState:
    """A state as it came from a worker."""

    __slots__ = ("_memory", "_packed", "_used", "content", "has_ended")

    def __init__(
        self, inbox: Inbox | None, has_ended: bool, content: Any = None, place: Any = None, packed: Any = None
    ) -> None:
        self.has_ended = has_ended
        self.content = content
        self._packed = packed
        self._memory: Any = None if place is None or inbox is None else inbox.open(place[:2], *place[2:])[0]
        self._used = 0 if place is None else place[3]

    @property
    def is_new(self) -> bool:
        """Whether it differs from the one before."""
        return self.content is not None or self._packed is not None

    def open(self) -> AskedStates:
        """What the dataset gave. Every call gives a copy of its own."""
        if self.content is not None:
            return AskedStates(*pickle.loads(self.content))
        stream, pieces = self._packed
        return AskedStates(*unpack(stream, pieces, np.array(self._memory[: self._used], subok=False)))


def is_large(state: Any) -> bool:
    """Whether what a worker told of a state is where it lies in shared memory."""
    return type(state) is tuple and len(state) > 2


class _Seen:
    """What the training loop has seen of one worker."""

    __slots__ = ("batches", "begun", "final", "given", "has_begun", "has_ended", "has_told_its_end", "since", "state")

    def __init__(self, start: StreamStart) -> None:
        self.given = start
        """What it went on from, until a state of its own has come."""
        self.batches, self.since, self.has_ended = start.batches, start.since, start.has_ended
        self.state: ArrivedState | None = None
        self.begun: ArrivedState | None = None
        """What it told when it had gone on from what was given. The next state may be the same, and is not sent then."""
        self.final: ArrivedState | None = None
        self.has_begun = self.has_told_its_end = False

    @property
    def goes_on_from_a_state(self) -> bool:
        """Whether it was given one. What was given holds: some datasets go on from it only with their first item."""
        return self.given.dataset is not None or self.given.iterator is not None

    def asked(self) -> AskedStates:
        return AskedStates(self.given.dataset, self.given.iterator) if self.state is None else self.state.open()

    def take(self, state: ArrivedState) -> None:
        self.has_ended = state.has_ended
        if state.is_new or self.state is None:
            self.state, self.begun = state if state.is_new else self.begun, None  # a large one lies in a slot till then

    def at_the_end(self) -> Part:
        """The state from which the next epoch begins."""
        last = self.final or self.state or self.begun
        asked = AskedStates(self.given.dataset, self.given.iterator) if last is None else last.open()
        if not self.has_told_its_end and self.since:  # there was no room for the state at its end
            return _written(0, self.since, False, asked)
        return _written(0, 0, False, asked if asked.is_same else asked._replace(iterator=None))


class WorkersPosition:
    """The position of an iterator with workers."""

    def __init__(self, sampled: Sampled | None, *, has_states: bool, persists: bool) -> None:
        self._sampled = sampled
        self._has_states = has_states
        """Whether workers own something that is asked for its state; not so if only a sampler is."""
        self._persists = persists
        self._workers: list[_Seen] = []
        self._generation = 0
        self._next_worker = 0
        self._ordered: dict[int, tuple[Any, bool, Part | None]] = {}
        self._overtaken: Collection[Any] = ()
        """What is still to be ordered of the batches that a state said were overtaken."""
        self._highest = -1
        self._sampler: Part | None = None
        self.complete: Callable[[], None] | None = None
        """Waits until all workers have told how they begin; None when there is nobody to wait for."""

    def begin(self, starts: Sequence[StreamStart], next_worker: int) -> None:
        """An epoch begins."""
        self._workers = [_Seen(start) for start in starts]
        self._generation += 1
        self._next_worker = next_worker
        self._ordered.clear()
        self._highest, self._sampler = -1, None

    def told(self, what: str, worker: int, generation: int, state: ArrivedState | None) -> None:
        """A worker has told how it begins, or how it ended."""
        if generation != self._generation:
            return  # of an epoch that was left early
        seen = self._workers[worker]
        if what == Report.BEGUN:
            if state is not None and seen.goes_on_from_a_state and not seen.given.is_before_the_end:
                seen.begun = state
            elif state is not None:
                seen.state, seen.since = state, 0
            seen.has_begun = True
        elif state is not None:
            seen.has_told_its_end = True
            seen.final = state if state.is_new else None

    def reported(self, worker: int) -> None:
        """A worker has made something, or failed to begin: it has told how it begins, or never will."""
        self._workers[worker].has_begun = True

    @property
    def generation(self) -> int:
        """The number of the epoch of these workers."""
        return self._generation

    @property
    def have_begun(self) -> bool:
        """Whether all workers have told how they begin."""
        return all(seen.has_begun for seen in self._workers)

    def saw(self, worker: int, state: ArrivedState | None) -> None:
        """The training loop got a batch, or an error in its place."""
        seen = self._workers[worker]
        seen.batches += 1
        if state is None:
            seen.since += 1
        else:
            seen.since = 0
            seen.take(state)
        self._next_worker = worker + 1

    def begin_overtaken(self, pending: Collection[Any]) -> None:
        """An epoch goes on with batches that were overtaken. They leave `pending` as they are ordered."""
        self._overtaken = pending

    def sampler_began(self) -> None:
        """The sampler was set back, and has given nothing yet."""
        assert self._sampled is not None
        self._sampler = self._sampled.state()

    def ordered(self, number: int, index: Any, *, is_overtaken: bool) -> None:
        """A batch of these indices was ordered. Those that were overtaken before the restart come before all others."""
        self._ordered[number] = index, is_overtaken, None if self._sampled is None else self._sampled.state()

    def saw_all_but(self, due: dict[int, Any]) -> None:
        """The training loop got a batch: the one that was ordered and is not due any more."""
        for number in [number for number in self._ordered if number not in due]:
            *_, state = self._ordered.pop(number)
            if number > self._highest:
                self._highest, self._sampler = number, state

    def part(self, *, is_fresh: bool) -> Part:
        """What a loader's state says of this position."""
        if is_fresh:
            return self._part_between_epochs()
        if self.complete is not None and self._has_states:
            self.complete()
        part: Part = {}
        if self._has_states:
            states = [_written(seen.batches, seen.since, seen.has_ended, seen.asked()) for seen in self._workers]
            workers = len(self._workers)
            part = {"workers": workers, "next_worker": self._next_worker % workers, "states": states}
        ordered = list(self._ordered.items())
        pending = [index for number, (index, is_overtaken, _) in ordered if is_overtaken or number < self._highest]
        if pending := [*pending, *self._overtaken]:
            part["pending"] = pending
        if self._sampler is not None:
            part["sampler"] = self._sampler
        return part

    def _part_between_epochs(self) -> Part:
        part: Part = {}
        if self._persists and self._has_states:
            states = [seen.at_the_end() for seen in self._workers]
            if any(len(state) > _COUNTS for state in states):
                part = {"workers": len(states), "next_worker": 0, "states": states}
        return part


_COUNTS = 3


def _written(batches: int, since: int, has_ended: bool, asked: AskedStates) -> Part:
    if asked.dataset is None and asked.iterator is None and not has_ended:
        since = max(since, batches)  # who says None for a state has none: passed by count
    state: Part = {"batches": batches, "since": since, "ended": has_ended}
    if asked.dataset is not None:
        state["dataset"] = asked.dataset
    if asked.iterator is not None:
        state["iterator"] = asked.iterator
    return state


class InlinePosition:
    """The position of an iterator without workers: all is here, and asked when the loader is."""

    def __init__(
        self,
        fetcher: Any,
        progress: Any,
        given: StreamStart,
        sampled: Sampled | None,
        overtaken: Collection[Any],
        counted: Any,
    ) -> None:
        is_iterable = hasattr(fetcher, "dataset_iter")
        owners = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
        has_state = counted is None and any(map(is_stateful, owners))
        self._counted = counted
        """The state at the start of an epoch that is passed by count."""
        self._fetcher = fetcher if has_state else None  # what has no state is not kept from being closed
        self._counts = is_iterable and not has_state
        self._progress = progress
        self.given: StreamStart | None = None if given.dataset is None and given.iterator is None else given
        """What it went on from, until a batch is asked for: some datasets tell an older state before their first item."""
        self._sampled = sampled
        self._overtaken = overtaken
        """Batches that a state said were overtaken. They leave it as they are taken."""

    def part(self, *, is_fresh: bool) -> Part:
        """What a loader's state says of this position."""
        if is_fresh:
            return {}
        part: Part = {}
        batches = self._progress.batches
        if (given := self.given) is not None:
            asked = copy.deepcopy(AskedStates(given.dataset, given.iterator))
            state = _written(given.batches, given.since, given.has_ended, asked)
            part = {"workers": 0, "next_worker": 0, "states": [state]}
        elif self._fetcher is not None:
            state = _written(batches, 0, getattr(self._fetcher, "ended", False), copy.deepcopy(ask(self._fetcher)))
            part = {"workers": 0, "next_worker": 0, "states": [state]}
        elif self._counts:
            state = _written(batches, batches, False, AskedStates(self._counted))
            part = {"workers": 0, "next_worker": 0, "states": [state]}
        if self._sampled is not None and (drawn := self._sampled.state()) is not None:
            part["sampler"] = drawn
        if self._overtaken:
            part["pending"] = list(self._overtaken)
        return part


class FixedPosition:
    """The position of a loader that was copied: it says what the original's did."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def part(self, *, is_fresh: bool) -> Part:
        """What a loader's state says of this position."""
        return self._part


def part_of(loader: Any, *, is_fresh: bool) -> Part:
    """What a loader's state says of the states of others; empty where nobody has one."""
    position = loader._position
    part: Part = {} if position is None else position.part(is_fresh=is_fresh)
    if is_fresh and not isinstance(position, FixedPosition):
        dataset = counted(loader.dataset) or loader.dataset
        if loader.num_workers == 0 and is_stateful(dataset):
            asked = AskedStates(copy.deepcopy(dataset.state_dict()))
            part = {"workers": 0, "next_worker": 0, "states": [_written(0, 0, False, asked)]}
        sampled = Sampled.of(loader)
        if sampled is not None and (state := sampled.state_between_epochs()) is not None:
            part["sampler"] = state
    return part
