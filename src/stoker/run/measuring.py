"""The measurements of an analysis, with the script's own loop as the consumer.

Once the training loader is known, the loop gets the batches of one phase after the other instead of the loader's own, for
as long as it asks. In between, with the loop paused, workers and storage are measured by themselves; before that, if the
script pauses the loop itself to validate.

    loop runs:    warm-up | batches on the device (gpu) | batches on the host | cached batches | on_device | cold batches
    loop paused:            prep by several numbers of workers; storage, cold; cache

`LoopClock` decides what counts and when a phase is over. What an earlier start of the script has measured is not measured
again. Under several ranks all do the same at the same time, and the slowest counts. Nothing begins after the deadline;
what was not measured by then is missing, or less sure.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stoker.host.cores import usable_cores
from stoker.host.headroom import headroom_bytes, memory_bytes
from stoker.measure import files
from stoker.measure.processor import own_cpu_s
from stoker.measure.series import Series
from stoker.run.agenda import Agenda
from stoker.run.loop_clock import LoopClock, Phase
from stoker.run.on_device import PHASES, Step, may_help, steps_on_device
from stoker.run.paused import Paused, worker_counts
from stoker.run.preparing import Preparing, next_of, synchronise
from stoker.run.replay import KeptBatch
from stoker.run.subject import Subject, close_iterator

WARM_UP = 5
_REPLAYED = 4
_OF_STREAMS = frozenset({"num_workers", "workers", "cache"})
"""What no plan changes of a stream's loader."""


class Measurement:
    """One analysis of one loader."""

    def __init__(self, loader: Any, agenda: Agenda) -> None:
        self.subject = subject = Subject(loader)
        self.found = found = agenda.found
        self.kept: list[KeptBatch] = []
        """Batches of the training loader, as they were."""
        self._agenda, self._ranks = agenda, agenda.ranks
        self._device: torch.device | None = None
        self._source: Iterator[Any] = iter(())
        self._cpu_s = self._busy_s = self._given_cpu_s = self._given_at = 0.0
        agenda.left_s = agenda.phase_s * (7 + len(worker_counts(subject.workers, self._ranks.world)))
        self._describe()
        self._paused: Paused | None = None
        if subject.is_stream:
            self._steps = self._steps_of_a_stream()
        else:
            batches = subject.batches(agenda.iterations + WARM_UP + 8 * max(1, subject.workers))
            found.batch = max(1, round(sum(len(subject.samples(batch)) for batch in batches) / len(batches)))
            self._paused = Paused(subject, agenda, batches)
            self._steps = self._steps_in_order(batches, self._paused)
        self.clock = LoopClock(
            rounds=max(1, subject.workers),
            batch=max(1, found.batch),
            phase_s=agenda.phase_s,
            iterations=agenda.iterations,
            deadline=agenda.deadline,
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

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the one that reports."""
        return self._ranks.rank == 0

    # ---- what the loop does

    def next_batch(self) -> Any:
        """The batch that the loop gets next. StopIteration: everything is measured."""
        clock = self.clock
        if clock.is_chunk_full:
            synchronise()
        self._count_cores()
        clock.asked(time.perf_counter())
        while clock.is_over:
            phase, series, self._source = next(self._steps)
            self._agenda.say(phase.name)
            synchronise()
            clock.begin(phase, series, time.perf_counter())
        batch = next_of(self._source)
        self._given_at, self._given_cpu_s = time.perf_counter(), own_cpu_s()
        clock.given(self._given_at)
        return batch

    def _count_cores(self) -> None:
        """How many cores the loop keeps busy while it works on a batch that was there."""
        if self._agenda.step == "alone" and self.clock.is_clean and self._given_at:
            self._cpu_s += own_cpu_s() - self._given_cpu_s
            self._busy_s += time.perf_counter() - self._given_at

    def epoch_ended(self) -> None:
        """The loop asked, and was told that its epoch is over."""
        synchronise()
        self.clock.asked(time.perf_counter())
        self.clock.ended(time.perf_counter())

    @contextmanager
    def counting_what_is_under_way(self) -> Iterator[None]:
        """Within this, `found` holds all that is known now, so that a phase that was begun need not be repeated."""
        with self.clock.counting_what_is_under_way() as is_timed:
            begun = [self._agenda.step] if is_timed and self._agenda.step else []
            self.found.done += begun
            yield
            del self.found.done[len(self.found.done) - len(begun) :]

    def other_begins(self) -> None:
        """The script iterates another loader, and may take long."""
        self.clock.other()
        self._agenda.save()
        if self.found.world == 1 and self._paused is not None:  # other ranks may not pause now
            step = self._agenda.step
            self._paused.measure()
            self._agenda.step = step

    # ---- the phases in their order

    def _steps_in_order(self, batches: list[Any], paused: Paused) -> Iterator[Step]:
        subject, found, agenda = self.subject, self.found, self._agenda
        own = subject.over(itertools.cycle(batches), subject.workers)
        yield self._warm_up(), Series(), self._remembering(own)
        close_iterator(own)
        self._find_device()
        yield from self._replays()
        paused.measure()
        if agenda.has_time_for("cached"):
            source = subject.over(itertools.cycle(batches), subject.workers, cached=True)
            yield Phase("cached samples", ahead=self._in_flight()), found.cached, source
            close_iterator(source)
            self._finish("cached")
        if self._device is not None and may_help(found):
            agenda.grant(PHASES * agenda.phase_s)
            self.clock.deadline = agenda.deadline
            yield from steps_on_device(subject, agenda, batches, self._finish)
        if paused.is_coolable and agenda.has_time_for("cold"):
            yield from self._cold(batches)
            self._finish("cold")
        agenda.note_what_is_missing()

    def _steps_of_a_stream(self) -> Iterator[Step]:
        """The measurements that are possible with an iterable dataset: the loop, and all that comes before it."""
        found, agenda = self.found, self._agenda
        found.note(
            "the dataset is a stream: reading and preparing cannot be told apart, and nothing can be cached or cooled"
        )
        stream = _epochs_of(self.subject.loader)
        yield self._warm_up(), Series(), self._remembering(stream)
        found.batch = self.kept[0].samples
        self.clock.batch = max(1, found.batch)
        self._find_device()
        yield from self._replays()
        if agenda.has_time_for("prep"):
            agenda.say("the stream without the loop")
            series = found.prep.setdefault(self.subject.workers, Series())
            Preparing(self.subject, agenda).consume(stream, series, self.subject.workers)
            self._finish("prep")
        if agenda.has_time_for("cold"):
            yield Phase("the stream in the loop", ahead=self._in_flight()), found.cold, stream
            self._finish("cold")
        agenda.note_what_is_missing()

    def _warm_up(self) -> Phase:
        return Phase("warming up", batches=2 if self.found.done else WARM_UP)

    def _remembering(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if len(self.kept) < _REPLAYED:
                self.kept.append(KeptBatch(batch))
            yield batch

    def _replays(self) -> Iterator[Step]:
        """Measure the loop with the same few batches again and again."""
        if self._agenda.has_time_for("alone"):
            moved = [batch for batch in (kept.on(self._device) for kept in self.kept) if batch is not None]
            if not moved:
                self.found.note(
                    "batches of this loader cannot be put on the device by the analysis (they hold what cannot be "
                    "copied): the loop's own rate includes their way there"
                )
            yield self._replay("the loop alone", moved or self.kept, self.found.gpu)
            self.found.loop_cores = self._cpu_s / self._busy_s if self._busy_s else 0.0
            self._finish("alone")
        if self._device is not None and self._agenda.has_time_for("host"):
            yield self._replay("the loop and the way to the device", self.kept, self.found.host)
            self._finish("host")

    def _replay(self, name: str, batches: list[KeptBatch], series: Series) -> Step:
        """Give copies of kept batches. They are made while the loop's clock stands still, unless a device makes them."""
        source = (batch.fresh() for batch in itertools.cycle(batches))
        return Phase(name, ahead=0, without_waiting=self._device is None), series, source

    def _cold(self, batches: list[Any]) -> Iterator[Step]:
        """Give batches of cold samples, except for the part that a cache would hold. After reading, samples are cooled."""
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
        """The number of batches that were prepared before the loop's time counted, or are under way."""
        return max(2, self.subject.workers * (self.subject.prefetch + 1))

    def _finish(self, step: str) -> None:
        self._agenda.left_s -= self.clock.active_s
        self._agenda.finish(step)

    def _find_device(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._device = torch.device("cuda", torch.cuda.current_device())
            self.found.device = torch.cuda.get_device_name(self._device)


def _epochs_of(loader: Any) -> Iterator[Any]:
    """Epoch after epoch of a stream, until one has nothing in it."""
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in loader._iterate():
            is_empty = False
            yield batch
