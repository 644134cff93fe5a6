"""The random generator's state at the start of each round through a loader's samples.

It is noted when the first batch is drawn, not when the loader's iterator is made: the script may draw from the generator in
between. Loaders without an end (timm's and yolov5's) go through their samples again and again with one iterator: each time
through is a round. A resumed run begins its rounds with the same states.
"""

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler

from stoker.feed.progress import TorchRoute, generator_text, set_generator

_KEPT = 64
"""Rounds that are remembered: as many as can begin ahead of the training loop."""

Start = tuple[int, str]
"""How many batches were drawn before a round, and the generator as it was then."""


class Rounds:
    """The rounds of one loader, since its iterator was made."""

    def __init__(self, loader: Any) -> None:
        route = TorchRoute(loader)
        self._generator, self._is_own = route.generator, route.has_own_generator
        self._drawn = 0
        self._starts: deque[Start] = deque(maxlen=_KEPT)
        self._planned: list[Start] = []

    def begin(self, planned: list[Start] | None = None) -> None:
        """Called when an iterator is made. Its first rounds begin with the planned states."""
        self._drawn = 0
        self._starts.clear()
        self._planned = list(planned or [])

    def since(self, batches: int) -> list[Start]:
        """The starts of the round that is on after so many batches, and of later rounds that have begun."""
        starts = list(self._starts)
        number = max((number for number, (first, _) in enumerate(starts) if first <= batches), default=0)
        return starts[number:]

    def go_round(self, batches: Iterator[Any]) -> Iterator[Any]:
        """One time through the batches."""
        planned = self._planned.pop(0)[1] if self._planned else None
        now = generator_text(self._generator)
        if planned is not None:
            set_generator(self._generator, planned)
        self._starts.append((self._drawn, planned or now))
        for number, batch in enumerate(batches):
            if number == 0 and planned is not None and not self._is_own:
                set_generator(self._generator, now)  # what this round drew was drawn before the checkpoint
            self._drawn += 1
            yield batch


_rounds: "weakref.WeakKeyDictionary[BatchSampler, Rounds]" = weakref.WeakKeyDictionary()
_iterate = BatchSampler.__iter__


def _iterate_in_rounds(self: BatchSampler) -> Iterator[list[int]]:
    found = _rounds.get(self)
    return _iterate(self) if found is None else found.go_round(_iterate(self))


def watch_rounds(loader: Any) -> Rounds | None:
    """Note the rounds of a loader that was just made; None if its batches are not torch's to draw."""
    if type(loader.batch_sampler) is not BatchSampler or loader._by_position:
        return None
    BatchSampler.__iter__ = _iterate_in_rounds  # type: ignore[method-assign]
    found = _rounds[loader.batch_sampler] = Rounds(loader)
    return found
