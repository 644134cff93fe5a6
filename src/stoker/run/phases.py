"""The phases of an analysis, with the script's own loop as the consumer.

When the script first iterates its training loader, it gets the batches of one phase after the other instead, for as long as
it asks. Between phases, with the loop paused, workers and storage are measured by themselves. All phases are one generator,
so that a loop which breaks off and comes again goes on where it was.

    loop runs:    warm-up | batches on the device (gpu) | batches on the host | cached batches | cold batches
    loop paused:            prep by several numbers of workers; storage, cold; cache

Under several ranks all do the same at the same time, and the slowest counts: every time that decides something is the
largest of all ranks.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree

from stoker.measure import files
from stoker.measure.host import usable_cores
from stoker.measure.processor import own_cpu_s, wanted_s
from stoker.measure.series import FEWEST, Series
from stoker.run.measured import Measured, Ranks
from stoker.run.reading import Reading
from stoker.run.subject import Ids, Subject

WARM_UP = 5
_CHUNK_S = 0.1
"""A chunk of iterations takes at least so long, so that clocks and single hiccups do not matter."""
_GOOD = 0.02
_REPLAYED = 4
_MOST_SAMPLES = 20_000
_IN_MEMORY = 0.99
_COLD = 0.05


class Phases:
    """One analysis."""

    def __init__(
        self, loader: Any, *, iterations: int, cached_part: float, phase_s: float, tell: Callable[[str, float], None]
    ):
        self.subject = Subject(loader)
        self.found = Measured(cached_part=cached_part)
        self._iterations = iterations
        self._phase_s = phase_s
        self._tell = tell
        self._ranks = Ranks()
        self._broken_off = False
        self._device: torch.device | None = None
        self._steps = self._run()
        self._left = self._plan_phases()

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the one that reports."""
        return self._ranks.rank == 0

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._ranks.world

    def consumer(self) -> Iterator[Any]:
        """What the script iterates; it may come several times."""
        self._broken_off = True
        return self._steps

    def _plan_phases(self) -> float:
        """About how long all of it takes."""
        counts = len(self._worker_counts()) + 1
        return self._phase_s * (5 + counts + 2)

    def _say(self, what: str) -> None:
        self._tell(what, max(0.0, self._left))

    def _spend(self, seconds: float) -> None:
        self._left -= seconds

    # ---- the phases in their order

    def _run(self) -> Iterator[Any]:
        subject, found = self.subject, self.found
        if subject.is_stream:
            yield from self._run_stream()
            return
        self._say("warming up")
        batches = subject.batches(self._iterations + WARM_UP + 8 * max(1, subject.workers))
        found.batch = round(sum(len(subject.samples(batch)) for batch in batches) / len(batches))
        own = subject.over(itertools.cycle(batches), subject.workers)
        kept: list[Any] = []
        for _ in range(WARM_UP):
            batch = next(own)
            if len(kept) < _REPLAYED:
                kept.append(_copied(batch))
            yield batch
        _close(own)
        self._find_device()
        yield from self._replay("the loop alone", [self._on_device(batch) for batch in kept], found.gpu, counts_cores=True)
        if self._device is not None:
            yield from self._replay("the loop and the way to the device", kept, found.host)
        ids = self._choose_samples(batches)
        storage = subject.storage
        paths = [path for some in storage.paths(ids) for path in some]
        self._make_warm(ids, paths)
        self._measure_prep(batches)
        yield from self._loop("cached samples", batches, found.cached)
        reading = Reading(subject, found, self._ranks, self._phase_s, self._say, self._spend)
        if not storage.is_known:
            found.spread = reading.measure_spread(ids)
            found.notes.append(f"reading was not told from preparing: {storage.why}; 'prep' has both in it")
        elif storage.is_files and not self._can_be_cold(paths):
            found.spread = reading.measure_spread(ids)
            found.notes.append(
                "the files cannot be made cold (somebody else holds them in memory): storage was not measured"
            )
        else:
            reading.measure(ids, paths)
            yield from self._loop_cold(batches)

    def _run_stream(self) -> Iterator[Any]:
        """What can be said of a stream: the loop, and all that comes before it."""
        found, loader = self.found, self.subject.loader
        self._say("warming up")
        stream = itertools.chain.from_iterable(loader._iterate() for _ in itertools.count())
        kept = []
        for batch in itertools.islice(stream, WARM_UP):
            kept.append(_copied(batch))
            yield batch
        found.batch = _length(kept[0])
        self._find_device()
        yield from self._replay("the loop alone", [self._on_device(batch) for batch in kept], found.gpu, counts_cores=True)
        self._say("the stream without the loop")
        self._consume(stream, found.prep.setdefault(self.subject.workers, Series()), self.subject.workers)
        yield from self._timed("the stream in the loop", stream, found.cold, skip=self._in_flight())
        found.notes.append(
            "the dataset is a stream: reading and preparing cannot be told apart, and nothing can be cached or cooled"
        )

    # ---- with the loop

    def _replay(self, what: str, batches: list[Any], series: Series, *, counts_cores: bool = False) -> Iterator[Any]:
        """The loop with batches that are there already. Copies are made while its clock stands still."""
        self._say(what)
        before = own_cpu_s()
        began = time.perf_counter()
        source = itertools.cycle(batches)
        yield from self._timed(what, (_copied(batch) for batch in source), series, skip=2, stands_still=True)
        if counts_cores:
            self.found.loop_cores = (own_cpu_s() - before) / max(1e-9, time.perf_counter() - began)

    def _loop(self, what: str, batches: list[Any], series: Series) -> Iterator[Any]:
        self._say(what)
        source = self.subject.over(itertools.cycle(batches), self.subject.workers, cached=True)
        yield from self._timed(what, source, series, skip=self._in_flight())
        _close(source)

    def _loop_cold(self, batches: list[Any]) -> Iterator[Any]:
        """Samples come cold, apart from the part that a cache would hold. What was read is cooled again."""
        subject, storage = self.subject, self.subject.storage
        self._say("cold samples")
        part = self.found.cached_part
        ids = sorted({number for batch in batches for number in subject.samples(batch)})
        stays = set(ids[: round(part * len(ids))]) if part else set()
        cold_paths = [path for some in storage.paths([number for number in ids if number not in stays]) for path in some]
        files.cool(cold_paths)
        source = subject.over(itertools.cycle(batches), subject.workers)

        def cooled() -> Iterator[Any]:
            for order, batch in zip(itertools.cycle(batches), source, strict=False):
                yield batch
                if storage.is_files:
                    some = [number for number in subject.samples(order) if number not in stays]
                    files.cool(path for paths in storage.paths(some) for path in paths)

        yield from self._timed("cold samples", cooled(), self.found.cold, skip=self._in_flight())
        _close(source)

    def _in_flight(self) -> int:
        """Batches that were prepared before the loop's time counted, and those under way."""
        return max(2, self.subject.workers * (self.subject.prefetch + 1))

    def _timed(
        self, what: str, source: Iterator[Any], series: Series, *, skip: int, stands_still: bool = False
    ) -> Iterator[Any]:
        """Give batches to the loop, and time it in chunks, until that is sure enough or takes too long."""
        for batch in itertools.islice(source, skip):
            yield batch
        began = time.perf_counter()
        size, is_tuned, given = max(1, self.subject.workers), False, 0
        while True:
            self._broken_off = False
            still = 0.0
            self._synchronise()
            start = time.perf_counter()
            for _ in range(size):
                before = time.perf_counter()
                batch = next(source)
                if stands_still and self._device is None:
                    still += time.perf_counter() - before
                yield batch
            self._synchronise()
            end = time.perf_counter()
            taken = self._ranks.largest(end - start - still)
            self._left -= end - start
            given += size
            if self._ranks.largest(float(self._broken_off)):
                began += end - start  # the script did something else meanwhile
                continue
            if not is_tuned:  # batches come in rounds, one from each worker: a chunk is a whole number of them
                size, is_tuned = size * math.ceil(_CHUNK_S / max(taken, 1e-4)), True
                continue
            series.add(size * self.found.batch, taken)
            self._say(what)
            if self._is_enough(series, self._ranks.largest(end - began), given):
                return

    def _is_enough(self, series: Series, elapsed: float, given: int) -> bool:
        """Sure enough, or too long."""
        if len(series.times) < FEWEST:
            return elapsed > 4 * self._phase_s
        is_sure = series.width < _GOOD or given >= self._iterations
        return elapsed > self._phase_s or (is_sure and elapsed > self._phase_s / 3)

    # ---- without the loop

    def _measure_prep(self, batches: list[Any]) -> None:
        subject, found = self.subject, self.found
        for workers in self._worker_counts():
            self._say(f"preparing with {workers} worker{'s' if workers != 1 else ''}")
            source = subject.over(itertools.cycle(batches), workers, cached=True)
            busy = self._consume(source, found.prep.setdefault(workers, Series()), workers)
            if workers and workers <= usable_cores():
                found.prep_busy = busy
            _close(source)
        most = max(found.prep)
        if most and subject.can_use_threads and subject.loader.workers == "processes":
            self._say(f"preparing with {most} threads")
            source = subject.over(itertools.cycle(batches), most, "threads", cached=True)
            self._consume(source, found.prep_threads.setdefault(most, Series()), most)
            _close(source)

    def _worker_counts(self) -> list[int]:
        own, cores = self.subject.workers, max(1, int(usable_cores() / max(1, self._ranks.world)))
        counts = {1, max(1, cores // 2), cores, max(1, own)} if cores <= 4 or own else {1, cores}
        return sorted(counts | ({0} if own == 0 else set()))

    def _consume(self, source: Iterator[Any], series: Series, workers: int) -> float:
        """Take batches as fast as they come. The part of the time that workers keep a core busy, or would."""
        size = max(1, workers)
        for _ in range(size * ((self.subject.prefetch or 2) + 1)):
            next(source)
        taken = self._ranks.largest(_seconds_of(source, 2 * size)) / 2
        size *= math.ceil(_CHUNK_S / max(taken, 1e-4))
        pids = [worker.pid for worker in getattr(source, "_workers", [])]
        began, busy, given = time.perf_counter(), wanted_s(pids), 0
        while True:
            taken = self._ranks.largest(_seconds_of(source, size))
            given += size
            self._left -= taken
            series.add(size * self.found.batch, taken)
            elapsed = time.perf_counter() - began
            if self._is_enough(series, self._ranks.largest(elapsed), given):
                return min(1.0, (wanted_s(pids) - busy) / (elapsed * max(1, workers))) if pids else 1.0

    # ---- what is measured with

    def _choose_samples(self, batches: list[Any]) -> Ids:
        """All samples of the batches; what they, and the whole dataset, amount to."""
        subject, found = self.subject, self.found
        ids = sorted({number for batch in batches for number in subject.samples(batch)})
        storage = subject.storage
        found.samples = len(subject.dataset)
        if storage.is_known:
            if (storage.is_files and found.samples > _MOST_SAMPLES) or not storage.is_files:
                found.bytes = round(storage.bytes(ids) / len(ids) * found.samples)
            else:
                known = list(range(found.samples)) if _is_cheap(storage) else ids
                found.bytes = round(storage.bytes(known) / len(known) * found.samples)
                found.bytes_known = len(known) == found.samples
        return ids

    def _make_warm(self, ids: Ids, paths: list[str]) -> None:
        """Have all samples in memory: the kernel's, or a cache of ours for a source that the kernel keeps nothing of."""
        storage = self.subject.storage
        if storage.is_files:
            files.warm(paths)
            if files.resident(paths) < _IN_MEMORY:
                self.found.notes.append(
                    "the samples of the cached phase do not stay in memory: 'prep' has some reading in it"
                )
        elif storage.is_known:
            self._say("filling a cache")
            self.subject.keep(ids)

    def _can_be_cold(self, paths: list[str]) -> bool:
        for _ in range(10):  # threads of the phase before may still be at their last sample
            files.cool(paths, sync=True)
            if files.resident(paths) <= _COLD:
                return True
            time.sleep(0.1)
        return False

    def _find_device(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._device = torch.device("cuda", torch.cuda.current_device())
            self.found.device = torch.cuda.get_device_name(self._device)

    def _on_device(self, batch: Any) -> Any:
        if self._device is None:
            return batch
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device), batch)

    def _synchronise(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)


def _is_cheap(storage: Any) -> bool:
    return type(getattr(storage, "_find", None)).__name__ != "_Recorded"


def _copied(batch: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, batch)


def _length(batch: Any) -> int:
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return len(tensors[0]) if tensors else 1


def _close(iterator: Any) -> None:
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def _seconds_of(source: Iterator[Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        next(source)
    return time.perf_counter() - began
