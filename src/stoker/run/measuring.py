"""The measurements of an analysis, with the script's own loop as the consumer.

Once the training loader is known, the loop gets the batches of one phase after the other instead of the loader's own, for
as long as it asks. In between, with the loop paused, workers and storage are measured by themselves; before that, if the
script pauses the loop itself to validate.

    loop runs:    warm-up | batches on the device (gpu) | batches on the host | cached batches | cold batches
    loop paused:            prep by several numbers of workers; storage, cold; cache

`LoopClock` decides what counts and when a phase is over. What an earlier start of the script has measured is not measured
again. Under several ranks all do the same at the same time, and the slowest counts. Nothing begins after the deadline;
what was not measured by then is missing, or less sure.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stoker.host.cores import usable_cores
from stoker.host.headroom import headroom_bytes, memory_bytes
from stoker.measure import files
from stoker.measure.busy import Watch
from stoker.measure.processor import own_cpu_s
from stoker.measure.series import Series
from stoker.run.loop_clock import LoopClock, Phase
from stoker.run.measured import Measured
from stoker.run.preparing import Preparing, next_of
from stoker.run.ranks import Ranks
from stoker.run.reading import Reading
from stoker.run.replay import Kept
from stoker.run.subject import Ids, Subject, close_iterator

WARM_UP = 5
_REPLAYED = 4
_OF_STREAMS = frozenset({"num_workers", "workers", "cache"})
"""What no plan changes of a stream's loader."""
_MOST_SAMPLES = 20_000
_IN_MEMORY = 0.99
_COLD = 0.05
_RESERVED = 0.4
"""The part of all time that is kept for the loop, from measurements that can be done without."""

Step = tuple[Phase, Series, Iterator[Any]]


class Measurement:
    """One analysis of one loader. `saved` is called whenever there is something new in `found`."""

    def __init__(
        self,
        loader: Any,
        found: Measured,
        *,
        iterations: int,
        phase_s: float,
        deadline: float,
        tell: Callable[[str, float], None],
        saved: Callable[[], None],
    ) -> None:
        self.subject = Subject(loader)
        self.found = found
        self.kept: list[Kept] = []
        """Batches of the training loader, as they were."""
        self._ranks = Ranks()
        self._iterations = iterations
        self._phase_s = phase_s
        self._began, self._deadline = time.perf_counter(), deadline
        self._tell, self._saved = tell, saved
        self._device: torch.device | None = None
        self._steps = self._steps_of_a_stream() if self.subject.is_stream else self._steps_in_order()
        self._source: Iterator[Any] = iter(())
        self._watch = Watch(os.getppid() if self._ranks.world > 1 else None)  # ranks are not others
        self._is_coolable: bool | None = None
        """Whether samples can be made cold; None before anything was measured without the loop."""
        self._step = ""
        """What is being measured with the loop, as in `found.done`."""
        self._cpu_s = self._busy_s = self._given_cpu_s = self._given_at = 0.0
        self._left_s = phase_s * (7 + len(self._worker_counts()))
        self._describe()
        self._clock = LoopClock(
            rounds=max(1, self.subject.workers),
            batch=max(1, found.batch),
            phase_s=phase_s,
            iterations=iterations,
            deadline=deadline,
            **({"agree": self._ranks.largest_of} if self._ranks.world > 1 else {}),
        )

    def _describe(self) -> None:
        """What is known of the loader before anything is measured."""
        found, subject = self.found, self.subject
        found.workers, found.prefetch = subject.workers, max(1, subject.prefetch)
        found.threads = bool(subject.workers) and subject.loader.workers == "threads"
        found.world = self._ranks.world
        found.fixed = sorted(subject.loader._options.given | (_OF_STREAMS if subject.is_stream else frozenset()))
        found.cores, found.memory_bytes, found.room_bytes = usable_cores(), memory_bytes(), max(0, headroom_bytes())
        if not subject.is_stream:
            self._batches = subject.batches(self._iterations + WARM_UP + 8 * max(1, subject.workers))
            found.batch = max(1, round(sum(len(subject.samples(batch)) for batch in self._batches) / len(self._batches)))

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the one that reports."""
        return self._ranks.rank == 0

    # ---- what the loop does

    def next_batch(self) -> Any:
        """The batch that the loop gets next. StopIteration: everything is measured."""
        clock = self._clock
        if clock.is_chunk_full:
            self._synchronise()
        self._count_cores()
        clock.asked(time.perf_counter())
        while clock.is_over:
            phase, series, self._source = next(self._steps)
            self._say(phase.name)
            self._synchronise()
            clock.begin(phase, series, time.perf_counter())
        batch = next_of(self._source)
        self._given_at, self._given_cpu_s = time.perf_counter(), own_cpu_s()
        clock.given(self._given_at)
        return batch

    def _count_cores(self) -> None:
        """How many cores the loop keeps busy while it works on a batch that was there."""
        if self._step == "alone" and self._clock.is_clean and self._given_at:
            self._cpu_s += own_cpu_s() - self._given_cpu_s
            self._busy_s += time.perf_counter() - self._given_at

    def epoch_ended(self) -> None:
        """The loop asked, and was told that its epoch is over."""
        self._synchronise()
        self._clock.asked(time.perf_counter())
        self._clock.ended(time.perf_counter())

    @contextmanager
    def counting_what_is_under_way(self) -> Iterator[None]:
        """Within, `found` has all that is known at this moment. A phase that was begun need not be repeated then."""
        with self._clock.counting_what_is_under_way() as is_timed:
            begun = [self._step] if is_timed and self._step else []
            self.found.done += begun
            yield
            del self.found.done[len(self.found.done) - len(begun) :]

    def updated(self) -> None:
        """An optimizer made a step."""
        self._clock.updated()

    def other(self) -> None:
        """The script did something else than training since its last batch."""
        self._clock.other()

    def other_begins(self) -> None:
        """The script iterates another loader, and may take long."""
        self._clock.other()
        self._saved()
        if self.found.world == 1 and not self.subject.is_stream:  # other ranks may not pause now
            step = self._step
            self._measure_without_loop()
            self._step = step

    # ---- the phases in their order

    def _steps_in_order(self) -> Iterator[Step]:
        subject, found, batches = self.subject, self.found, self._batches
        own = subject.over(itertools.cycle(batches), subject.workers)
        yield self._warm_up(), Series(), self._remembering(own)
        close_iterator(own)
        self._find_device()
        yield from self._replays()
        self._measure_without_loop()
        if self._has_time_for("cached"):
            source = subject.over(itertools.cycle(batches), subject.workers, cached=True)
            yield Phase("cached samples", ahead=self._in_flight()), found.cached, source
            close_iterator(source)
            self._finish("cached")
        if self._is_coolable and self._has_time_for("cold"):
            yield from self._cold(batches)
            self._finish("cold")
        self._note_what_is_missing()

    def _steps_of_a_stream(self) -> Iterator[Step]:
        """What can be said of a stream: the loop, and all that comes before it."""
        found, loader = self.found, self.subject.loader
        found.note(
            "the dataset is a stream: reading and preparing cannot be told apart, and nothing can be cached or cooled"
        )
        stream = _epochs_of(loader)
        yield self._warm_up(), Series(), self._remembering(stream)
        found.batch = self.kept[0].samples
        self._clock.batch = max(1, found.batch)
        self._find_device()
        yield from self._replays()
        if self._has_time_for("prep"):
            self._say("the stream without the loop")
            preparing = Preparing(self.subject, found, self._ranks, self._phase_s, self._iterations, self._spend)
            preparing.consume(stream, found.prep.setdefault(self.subject.workers, Series()), self.subject.workers)
            self._finish("prep")
        if self._has_time_for("cold"):
            yield Phase("the stream in the loop", ahead=self._in_flight()), found.cold, stream
            self._finish("cold")
        self._note_what_is_missing()

    def _warm_up(self) -> Phase:
        return Phase("warming up", batches=2 if self.found.done else WARM_UP)

    def _remembering(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if len(self.kept) < _REPLAYED:
                self.kept.append(Kept(batch))
            yield batch

    def _replays(self) -> Iterator[Step]:
        """The loop with batches that are there already, over and over."""
        if self._has_time_for("alone"):
            moved = [batch for batch in (kept.on(self._device) for kept in self.kept) if batch is not None]
            if not moved:
                self.found.note(
                    "batches of this loader cannot be put on the device by the analysis (they hold what cannot be "
                    "copied): the loop's own rate includes their way there"
                )
            yield self._replay("the loop alone", moved or self.kept, self.found.gpu)
            self.found.loop_cores = self._cpu_s / self._busy_s if self._busy_s else 0.0
            self._finish("alone")
        if self._device is not None and self._has_time_for("host"):
            yield self._replay("the loop and the way to the device", self.kept, self.found.host)
            self._finish("host")

    def _replay(self, name: str, batches: list[Kept], series: Series) -> Step:
        """Copies are made while the loop's clock stands still, unless a device makes them."""
        source = (batch.fresh() for batch in itertools.cycle(batches))
        return Phase(name, ahead=0, without_waiting=self._device is None), series, source

    def _cold(self, batches: list[Any]) -> Iterator[Step]:
        """Samples come cold, apart from the part that a cache would hold. What was read is cooled again."""
        subject, storage = self.subject, self.subject.storage
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

        yield Phase("cold samples", ahead=self._in_flight()), self.found.cold, cooled()
        close_iterator(source)

    def _in_flight(self) -> int:
        """Batches that were prepared before the loop's time counted, and those under way."""
        return max(2, self.subject.workers * (self.subject.prefetch + 1))

    # ---- time, and what was done in it

    def _has_time_for(self, step: str, reserved: float = 0.0) -> bool:
        """Whether to do a step now. A part of all time may be reserved for what comes later."""
        if step in self.found.done:
            return False
        latest = self._deadline - reserved * (self._deadline - self._began)
        if self._ranks.largest(float(time.perf_counter() >= latest)):
            return False
        self._step = step
        return True

    def _finish(self, step: str) -> None:
        self._step = ""
        self.found.done.append(step)
        load = self._watch.load()
        if load.matters and load.taken > self.found.others:
            self.found.others = load.taken
            self.found.busy = load.words()
        self._spend(self._clock.active_s)
        self._saved()

    def _note_what_is_missing(self) -> None:
        if self._ranks.largest(float(time.perf_counter() >= self._deadline)):
            self.found.note("the time was too short for all measurements (--time gives each more of it)")

    def _say(self, what: str) -> None:
        self._tell(what, max(0.0, self._left_s))

    def _spend(self, seconds: float) -> None:
        self._left_s -= seconds

    # ---- without the loop

    def _measure_without_loop(self) -> None:
        """Preparing, then storage. All samples are warm afterwards."""
        if self._is_coolable is not None:
            return
        self._is_coolable = False
        try:
            self._measure_workers_and_storage()
        except Exception as error:  # of the user's dataset, which is asked for samples in a way that it did not expect
            self.found.note(f"preparing and reading could not be measured by themselves: {type(error).__name__}: {error}")

    def _measure_workers_and_storage(self) -> None:
        subject, found, batches = self.subject, self.found, self._batches
        ids = self._choose_samples(batches)
        storage = subject.storage
        paths = [path for some in storage.paths(ids) for path in some]
        self._make_warm(ids, paths)
        self._measure_prep(batches)
        reading = Reading(subject, found, self._ranks, self._phase_s, self._say, self._spend)
        if not storage.is_known:
            found.spread = reading.measure_spread(ids)
            found.note(f"reading was not told from preparing: {storage.why}; 'prep' has both in it")
            return
        if storage.is_files and not self._can_be_cold(paths):
            found.spread = reading.measure_spread(ids)
            found.note("the files cannot be made cold (another process holds them in memory): storage was not measured")
            return
        self._is_coolable = True
        if self._has_time_for("storage", _RESERVED):
            reading.measure(ids, paths)
            self._finish("storage")
        elif storage.is_files:
            files.warm(paths)

    def _measure_prep(self, batches: list[Any]) -> None:
        subject, found = self.subject, self.found
        preparing = Preparing(subject, found, self._ranks, self._phase_s, self._iterations, self._spend)
        for workers in self._worker_counts():
            if self._has_time_for(f"prep {workers}", _RESERVED if found.prep else 0.0):
                self._say(f"preparing with {workers} worker{'s' if workers != 1 else ''}")
                preparing.measure(batches, workers)
                self._finish(f"prep {workers}")
        most = max(found.prep, default=0)
        if most and subject.can_use_threads and not found.threads and self._has_time_for("threads", _RESERVED):
            self._say(f"preparing with {most} threads")
            preparing.measure_threads(batches, most)
            self._finish("threads")

    def _worker_counts(self) -> list[int]:
        """Those of the loader itself, then others by which more or fewer can be judged."""
        own, cores = self.subject.workers, max(1, int(usable_cores() / max(1, self._ranks.world)))
        counts = {1, max(1, cores // 2), cores, max(1, own)} if cores <= 4 or own else {1, cores}
        counts |= {0} if own == 0 else set()
        return [own, *sorted(counts - {own})]

    # ---- what is measured with

    def _choose_samples(self, batches: list[Any]) -> Ids:
        """All samples of the batches; what they, and the whole dataset, amount to."""
        subject, found = self.subject, self.found
        ids = sorted({number for batch in batches for number in subject.samples(batch)})
        storage = subject.storage
        found.samples = subject.length
        if storage.is_known:
            if (storage.is_files and found.samples > _MOST_SAMPLES) or not storage.is_files:
                found.bytes = round(storage.bytes(ids) / len(ids) * found.samples)
            else:
                known = list(range(found.samples)) if storage.is_listed else ids
                found.bytes = round(storage.bytes(known) / len(known) * found.samples)
                found.bytes_known = len(known) == found.samples
        return ids

    def _make_warm(self, ids: Ids, paths: list[str]) -> None:
        """Have all samples in memory: the kernel's, or a cache of ours for a source that the kernel keeps nothing of."""
        storage = self.subject.storage
        if storage.is_files:
            files.warm(paths)
            if files.resident(paths) < _IN_MEMORY:
                self.found.note("the samples of the cached phase do not stay in memory: 'prep' has some reading in it")
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

    def _synchronise(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)


def _epochs_of(loader: Any) -> Iterator[Any]:
    """Epoch after epoch of a stream, until one has nothing in it."""
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in loader._iterate():
            is_empty = False
            yield batch
