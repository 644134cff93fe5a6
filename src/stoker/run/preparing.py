"""Preparing by itself: how fast workers are while the loop is paused and all samples are in memory."""

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from stoker.errors import CommandError
from stoker.feed.carrier import WorkersIter
from stoker.feed.pooled import PoolIter
from stoker.host.cores import usable_cores
from stoker.measure.processor import wanted_s
from stoker.measure.series import FEWEST, Series
from stoker.run.agenda import Agenda
from stoker.run.loop_clock import CHUNK_S, GOOD
from stoker.run.subject import Subject, close_iterator

_NOTHING = object()


def next_of(source: Iterator[Any]) -> Any:
    """The next batch of a source that should have no end."""
    batch = next(source, _NOTHING)
    if batch is _NOTHING:
        raise CommandError("the training loader gives nothing more: it can be read once only")
    return batch


def synchronise() -> None:
    """Wait until a device has done what it was asked for, if one is used."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


class Preparing:
    """Finds `prep`, `prep_threads`, `prep_busy` and `prep_on_device`."""

    def __init__(self, subject: Subject, agenda: Agenda) -> None:
        self._subject, self._agenda = subject, agenda
        self._found, self._ranks, self._phase_s = agenda.found, agenda.ranks, agenda.phase_s

    def measure(self, batches: list[Any], workers: int) -> None:
        """Measure with so many workers of the loader's own kind."""
        source = self._subject.over(itertools.cycle(batches), workers, cached=True)
        busy = self.consume(source, self._found.prep.setdefault(workers, Series()), workers)
        if workers and workers <= usable_cores():
            self._found.prep_busy = busy
        close_iterator(source)

    def measure_on_device(self, source: Iterator[Any], part: str) -> None:
        """Measure with a part of preparing done by the device."""
        self.consume(source, self._found.prep_on_device.setdefault(part, Series()), self._subject.workers)

    def measure_threads(self, batches: list[Any], workers: int) -> None:
        """Measure with so many threads."""
        source = self._subject.over(itertools.cycle(batches), workers, "threads", cached=True)
        self.consume(source, self._found.prep_threads.setdefault(workers, Series()), workers)
        close_iterator(source)

    def consume(self, source: Iterator[Any], series: Series, workers: int) -> float:
        """Take batches as fast as they come. Returns the part of the time that workers keep a core busy, or would."""
        pids = source.pids if isinstance(source, WorkersIter | PoolIter) else []
        rounds, began = max(1, workers), time.perf_counter()
        for _ in range(rounds * ((self._subject.prefetch or 2) + 1)):
            next_of(source)
            if self._ranks.largest(time.perf_counter() - began) > self._phase_s / 2:
                break
        began, busy, given = time.perf_counter(), wanted_s(pids), rounds
        taken = self._take(source, rounds)
        if taken > self._phase_s / 2:  # two rounds are the fewest that tell how sure it is
            for seconds in (taken, self._take(source, rounds)):
                series.add(rounds * max(1, self._found.batch), seconds)
        else:
            size = rounds * math.ceil(CHUNK_S / max(taken, 1e-4))  # whole rounds: their batches come together
            while True:
                taken = self._take(source, size)
                given += size
                series.add(size * max(1, self._found.batch), taken)
                if self._is_enough(series, self._ranks.largest(time.perf_counter() - began), given):
                    break
        elapsed = time.perf_counter() - began
        return min(1.0, (wanted_s(pids) - busy) / (elapsed * max(1, workers))) if pids else 1.0

    def _take(self, source: Iterator[Any], count: int) -> float:
        """How long the slowest rank waits for so many batches."""
        began = time.perf_counter()
        for _ in range(count):
            next_of(source)
        synchronise()
        taken = self._ranks.largest(time.perf_counter() - began)
        self._agenda.left_s -= taken
        return taken

    def _is_enough(self, series: Series, elapsed: float, given: int) -> bool:
        if len(series.times) < FEWEST:
            return elapsed > 1.5 * self._phase_s
        is_sure = series.width < GOOD or given >= self._agenda.iterations
        return elapsed > self._phase_s or (is_sure and elapsed > self._phase_s / 3)
