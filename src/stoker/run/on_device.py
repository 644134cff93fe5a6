"""What is measured with a part of preparing done by the device, for the tail of it and for decoding and all after it.

    loop paused:  workers and device together, with samples that are in memory
    loop runs:    batches that workers had prepared before, and the device's part beside the loop | samples in memory

The second tells what the device's part takes from the loop. This is tried where the loop waits for preparing.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stoker.decide.model import AT_LIMIT
from stoker.device.tail import at, put_at
from stoker.errors import CommandError
from stoker.feed.coming import AHEAD
from stoker.feed.finishing import Decoding, why_not
from stoker.measure.series import Series
from stoker.plan import DEVICE, TAIL
from stoker.run.agenda import Agenda
from stoker.run.loop_clock import Phase
from stoker.run.measured import Measured
from stoker.run.preparing import Preparing, next_of
from stoker.run.replay import KeptBatch
from stoker.run.subject import Subject, close_iterator

_KEPT = 4
_WORDS = {TAIL: "the tail on the device", DEVICE: "decoding on the device"}

PHASES = 12
"""They take so many times the time of a phase at most, workers' starts included."""

Step = tuple[Phase, Series, Iterator[Any]]


def may_help(found: Measured) -> bool:
    """Whether the loop waits for preparing, and the script says nothing of where that is done."""
    return "prep" not in found.fixed and bool(found.cached.times) and found.cached.rate < AT_LIMIT * found.gpu.rate


def steps_on_device(subject: Subject, agenda: Agenda, batches: list[Any], finish: Callable[[str], None]) -> Iterator[Step]:
    """Measure both parts. `finish` is told of each step of the loop that is done."""
    found = agenda.found
    for part in (TAIL, DEVICE):
        if all(step in found.done for step in _names(part)) or agenda.is_over:
            continue
        loader = subject.on_device(itertools.cycle(batches), part)
        why = why_not(loader, part)
        if agenda.ranks.largest(float(bool(why))):
            what = "--prep" if part == TAIL else f"--prep {part}"
            found.note(f"{what} was not measured: {why or 'another rank cannot do it'}")
            return  # what stands in the way of the tail does so for decoding, too
        yield from _steps_of(part, loader, subject, agenda, finish)


def _names(part: str) -> list[str]:
    return [f"{what} {part}" for what in ("prep", "loop", "cached")]


def _steps_of(part: str, loader: Any, subject: Subject, agenda: Agenda, finish: Callable[[str], None]) -> Iterator[Step]:
    found, ranks = agenda.found, agenda.ranks
    iterator = loader._iterate()
    keeping = iterator.finishing = _Keeping(iterator.finishing)
    source = _Unbroken(iterator, keeping)
    prep, loop, cached = _names(part)
    source.begin()
    seen = loader.stats()
    if not ranks.largest(float(bool(source.error))):
        if ranks.largest(float(not (seen.on_device if part == TAIL else seen.decoded_on_device))):
            why = why_not(loader, part) or "it leaves nothing of these samples to the GPU"
            found.note(f"--prep {part} was not measured: {why}")
            close_iterator(iterator)
            return
        if agenda.has_time_for(prep):
            agenda.say(f"preparing, with {_WORDS[part]}")
            Preparing(subject, agenda).measure_on_device(source, part)
            agenda.finish(prep)
        if agenda.has_time_for(loop):
            series = found.loop_on_device.setdefault(part, Series())
            yield Phase(f"the loop beside {_WORDS[part]}"), series, _finished_beside(keeping, part)
            finish(loop)
        if agenda.has_time_for(cached):
            series = found.cached_on_device.setdefault(part, Series())
            ahead = max(2, subject.workers * (subject.prefetch + 1)) + (AHEAD if part == DEVICE else 0)
            yield Phase(f"cached samples, with {_WORDS[part]}", ahead=ahead), series, source
            finish(cached)
    close_iterator(iterator)
    if ranks.largest(float(bool(source.error))):
        found.note(f"--prep {part} was not measured: it failed ({source.error or 'on another rank'})")
        for rates in (found.prep_on_device, found.loop_on_device, found.cached_on_device):
            rates.pop(part, None)
        found.done += [step for step in _names(part) if step not in found.done]


class _Unbroken:
    """Batches until one fails: a damaged picture, which the dataset itself would have caught, say.

    From then on those that were kept come again, so that all ranks go on together until they agree on what to do.
    """

    def __init__(self, iterator: Iterator[Any], keeping: "_Keeping") -> None:
        self._iterator, self._keeping = iterator, keeping
        self._again: Iterator[Any] | None = None
        self.error = ""

    def begin(self) -> None:
        """Take so many as are kept."""
        try:
            for _ in range(_KEPT):
                next_of(self._iterator)
        except CommandError:
            raise
        except Exception as error:
            self.error = _words_of(error)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._again is None:
            try:
                return next(self._iterator)
            except StopIteration:
                raise
            except Exception as error:
                self.error = _words_of(error)
            self._again = _finished_beside(self._keeping, TAIL)
        return next(self._again)


def _words_of(error: Exception) -> str:
    """An error in a line. One of a worker has its traceback, and its own words at the end of it."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1] if len(lines) > 1 else f"{type(error).__name__}: {lines[0]}"


class _Keeping:
    """Finishes batches on the device as before, and keeps the first few as workers have made them."""

    def __init__(self, finishing: Any) -> None:
        self._finishing = finishing
        self.kept: list[_Unfinished] = []

    def finish(self, batch: Any, rest: tuple[Any, ...]) -> Any:
        """Do what workers have left."""
        if len(self.kept) < _KEPT:
            self.kept.append(_Unfinished(batch, rest))
        return self._finishing.finish(batch, rest)


class _Unfinished:
    """A batch as workers have made it. What the device reads of it is page-locked, as in a slot, and not copied again.

    It is a copy: page-locking what is page-locked gives the same memory, and a slot that is kept is missing to the workers.
    """

    def __init__(self, batch: Any, rest: tuple[Any, ...]) -> None:
        self._rest = rest
        self._packed: list[Any] | None = None
        self._pixels: dict[Any, torch.Tensor] = {}
        if rest[0] == DEVICE:
            batch, packed = batch
            self._packed = [(files.clone().pin_memory(), table.clone()) for files, table in packed]
        else:
            self._pixels = {path: at(batch, path).clone().pin_memory() for path, *_ in rest[1]}
            batch = KeptBatch(batch).fresh()
            for path in filter(None, self._pixels):
                put_at(batch, path, torch.empty(0))
        self._others = KeptBatch(batch)

    def fresh(self) -> tuple[Any, tuple[Any, ...]]:
        """The batch, and what is left to do."""
        batch = self._others.fresh()
        for path, pixels in self._pixels.items():
            if not path:
                batch = pixels
            else:
                put_at(batch, path, pixels)
        return (batch if self._packed is None else (batch, self._packed)), self._rest


def _finished_beside(keeping: _Keeping, part: str) -> Iterator[Any]:
    """The same few batches again and again. As many are decoded while the loop has one as there would be for a loader."""
    coming: deque[Any] = deque()
    for one in itertools.cycle(keeping.kept):
        coming.append(keeping.finish(*one.fresh()))
        if len(coming) > (AHEAD if part == DEVICE else 0):
            batch = coming.popleft()
            yield batch.result() if isinstance(batch, Decoding) else batch
