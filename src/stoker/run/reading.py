"""Measures storage by itself, cold and in random order, while the loop is paused.

A store with a quota saves up while nobody reads, and may give in bursts what is due. So what was saved up before a
measurement does not count, and rates are taken from one wait of the store to another. A worker lets the store rest while it
prepares: the rate of such a reader is measured separately.
"""

import random
import statistics
import time
from collections.abc import Callable

from stoker.measure import files
from stoker.measure.series import FEWEST, Series, stretches
from stoker.run.agenda import Agenda
from stoker.run.subject import SampleIds, Subject

_ENOUGH = 0.02
_REST = 1.5
"""A rest is at least so many times as long as a read takes without: a quota is not used up then."""
_SINGLE = 64
"""So many samples are timed one by one."""


class Reading:
    """Finds `storage`, `storage_rested`, `spread` and `cache`."""

    def __init__(self, subject: Subject, agenda: Agenda) -> None:
        self._subject, self._agenda = subject, agenda
        self._found, self._ranks, self._phase_s = agenda.found, agenda.ranks, agenda.phase_s

    def measure(self, ids: SampleIds, paths: list[str]) -> None:
        """Measure everything, over samples that can be made cold by dropping these files from memory."""
        found, workers = self._found, max(1, self._subject.workers)
        ids = random.Random(0).sample(ids, len(ids))
        readers = self._subject.storage.readers(ids)
        for count in sorted({1, workers, 2 * workers}):
            self._agenda.say(f"reading from storage by {count}")
            self._read(readers, paths, count, found.storage.setdefault(count, Series()))
        prep = found.prep.get(1)
        pause_s = max(1 / prep.rate if prep and prep.rate else 0.0, _REST / max(1.0, found.storage[1].rate))
        self._agenda.say("reading from storage with rests")
        found.storage_rested = self._read_rested(readers, paths, pause_s)
        found.spread = self.measure_spread(ids, pause_s)
        files.warm(paths)
        cached = self._subject.cached_readers(ids)
        found.cache = statistics.median(files.read_rate(cached, 1, 0.3) for _ in range(3)) * workers

    def measure_spread(self, ids: SampleIds, pause_s: float = 0.0) -> float:
        """How much the times of single samples differ, reading included, with a rest before each of them."""
        times: list[float] = []
        began = time.perf_counter()
        chosen = ids[:: max(1, len(ids) // _SINGLE)][:_SINGLE]
        if self._subject.storage.is_files:
            files.cool(path for some in self._subject.storage.paths(chosen) for path in some)
        for number in chosen if isinstance(self._subject.first, int) else ():  # not of a dataset that gives whole batches
            times.append(_seconds(lambda number=number: self._subject.dataset[number], pause_s))  # type: ignore[misc]
            if time.perf_counter() - began > self._phase_s / 3:
                break
        self._agenda.left_s -= time.perf_counter() - began
        return min(2.0, statistics.stdev(times) / statistics.fmean(times)) if len(times) > 2 else 0.3

    def _read(self, readers: list[Callable[[], object]], paths: list[str], count: int, series: Series) -> None:
        files.cool(paths)
        files.read_rate(readers, count, self._phase_s / 6)  # what the phase before left to do is done meanwhile
        began = time.perf_counter()
        for number in range(1, 12):
            files.cool(paths)
            first = number * 7919 % len(readers)
            ends = files.read_ends(readers[first:] + readers[:first], count, self._phase_s / 2)
            found = stretches(ends, self._phase_s / 10)
            own_s = statistics.fmean(found) if found else 0.0
            slowest_s = self._ranks.largest(own_s)
            for sample_s in found:
                series.add(1.0, sample_s * slowest_s / own_s)
            elapsed = time.perf_counter() - began
            is_enough = elapsed > self._phase_s or (len(series.times) >= FEWEST and series.width < _ENOUGH)
            if not self._ranks.largest(float(not is_enough)):
                break
        self._agenda.left_s -= time.perf_counter() - began

    def _read_rested(self, readers: list[Callable[[], object]], paths: list[str], pause_s: float) -> float:
        """The rate of a reader that waits between reads. The waits do not count."""
        files.cool(paths)
        ahead, chunks, began = iter(readers), [], time.perf_counter()
        while time.perf_counter() - began < self._phase_s / 2:
            times: list[float] = []
            while sum(times) + len(times) * pause_s < self._phase_s / 20 and (reader := next(ahead, None)) is not None:
                times.append(_seconds(reader, pause_s))
            if not times:
                break
            chunks.append(statistics.fmean(times))
        self._agenda.left_s -= time.perf_counter() - began
        chunks = chunks[1:] or chunks  # the first ones pay for what the phase before took
        return 1 / self._ranks.largest(statistics.median(chunks))  # others who use the disk come and go


def _seconds(act: Callable[[], object], pause_s: float) -> float:
    """How many seconds a call takes after a rest."""
    time.sleep(pause_s)
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
