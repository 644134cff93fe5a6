"""How long the training loop's own iterations take, from what is seen of the loop. Pure: every event brings its time.

    asked    the loop wants a batch; the iteration before is over
    given    it got one
    updated  an optimizer made a step
    other    another loader was used: what the loop does until it asks again is not training (validation, mostly)
    ended    the epoch is over: what comes until the loop asks again is not training either

An iteration lasts from one `asked` to the next: waiting for a batch, then working on it. It counts unless something else
happened in it. After an interruption the first batches may have been prepared meanwhile, and do not count.

A phase is a stretch of iterations that get the same kind of batches. It is timed in chunks, until that is sure enough or
takes too long. A chunk is closed after a number of batches, not of iterations that count, so that all ranks of a script
close theirs together; what counts of it is then agreed on, and the slowest rank's time is taken.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stoker.measure.series import FEWEST, Series

CHUNK_S = 0.1
"""A chunk takes at least so long, so that clocks and single hiccups do not matter."""
GOOD = 0.02
_TUNINGS = 4
_MOST_ACCUMULATION = 64

Agree = Callable[..., tuple[float, ...]]
"""The largest of each value over all ranks."""


def _alone(*values: float) -> tuple[float, ...]:
    return values


@dataclass(frozen=True, slots=True)
class Phase:
    """What the loop gets, and how its time is counted."""

    name: str
    ahead: int = 0
    """Batches that may have been prepared before the loop asked for them."""
    without_waiting: bool = False
    """Only the loop's work counts: handing out a batch is the analysis's own doing."""
    batches: int | None = None
    """It is over after so many, and not timed."""


class LoopClock:
    """Times one phase after the other."""

    def __init__(
        self, *, rounds: int, batch: float, phase_s: float, iterations: int, deadline: float, agree: Agree = _alone
    ) -> None:
        self._rounds = rounds
        self.batch = batch
        self._phase_s = phase_s
        self._enough = iterations
        self.deadline = deadline
        """No phase is looked into for longer."""
        self._agree = agree
        self._phase = Phase("nothing", batches=0)
        self._series = Series()
        self._asked_at: float | None = None
        self._given_at = 0.0
        self._left_at: float | None = None
        self._is_clean = True
        self._skip = 0
        self._typical_s = 0.0
        self._all_given = self._updates = 0
        self._start_chunks()
        self.is_over = True
        self.active_s = 0.0
        """How long the loop did what counts, or would have without what was prepared ahead, in this phase."""

    def _start_chunks(self) -> None:
        self._size, self._tunings = 1, 0
        self._phase_given = 0
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._target = self._size
        self._chunk_given = self._chunk_iterations = 0
        self._chunk_s = 0.0

    def begin(self, phase: Phase, series: Series, now: float) -> None:
        """The batch that is asked for right now is the first of a phase."""
        self._phase, self._series, self._skip = phase, series, phase.ahead
        self._asked_at, self._left_at, self._is_clean = now, None, True
        self._typical_s = self.active_s = 0.0
        self.is_over = False
        self._start_chunks()

    # ---- events

    def asked(self, now: float) -> None:
        """The loop wants a batch."""
        if self._asked_at is not None:
            self._finish_iteration(now)
        elif self._left_at is not None:
            self._interrupted(now - self._left_at)
        self._asked_at, self._is_clean = now, True
        if self._phase.batches is not None:
            self._end_untimed(self._phase.batches)
        elif self.is_chunk_full or self._is_overdue(now):
            self._close_chunk(now)

    def given(self, now: float) -> None:
        """The loop got one."""
        self._given_at = now
        self._chunk_given += 1
        self._phase_given += 1
        self._all_given += 1

    def updated(self) -> None:
        """An optimizer made a step."""
        self._updates += 1

    def other(self) -> None:
        """The script did something else than training since its last batch."""
        self._is_clean = False

    def ended(self, now: float) -> None:
        """The loop was told that its epoch is over."""
        self._asked_at, self._left_at = None, now

    @contextmanager
    def counting_what_is_under_way(self) -> Iterator[bool]:
        """Within this, the series includes a chunk that is not full. Yields whether the phase was timed at all."""
        is_timed = self._phase.batches is None and not self.is_over
        if is_timed and self._chunk_iterations:
            self._series.add(self._chunk_iterations * self.batch, self._chunk_s)
            try:
                yield True
            finally:
                self._series.drop_last()
        else:
            yield is_timed and bool(self._series.times)

    @property
    def is_chunk_full(self) -> bool:
        """Whether the next `asked` closes a chunk: on a device, what was submitted has to be waited for first."""
        return self._chunk_given >= self._target

    @property
    def is_clean(self) -> bool:
        """Whether nothing but training was seen since the last batch."""
        return self._is_clean and self._asked_at is not None

    # ---- what they mean

    def _finish_iteration(self, now: float) -> None:
        assert self._asked_at is not None
        if not self._is_clean:
            self._interrupted(now - self._given_at - self._typical_s)
            return
        took = now - (self._given_at if self._phase.without_waiting else self._asked_at)
        self._typical_s = took if not self._typical_s else (3 * self._typical_s + took) / 4
        self.active_s += took
        if self._skip and self.active_s < self._phase_s:
            self._skip -= 1
            return
        self._skip = 0
        self._chunk_iterations += 1
        self._chunk_s += took

    def _interrupted(self, seconds: float) -> None:
        """After an interruption: batches that were prepared meanwhile do not count."""
        if self._phase.ahead and self._typical_s > 0:
            self._skip = max(self._skip, min(self._phase.ahead, math.ceil(max(0.0, seconds) / self._typical_s)))

    def _end_untimed(self, batches: int) -> None:
        is_long = self._phase_given > 0 and self.active_s > self._phase_s / 2
        self.is_over = bool(self._agree(float(self._phase_given >= batches or is_long))[0])

    def _is_overdue(self, now: float) -> bool:
        """Whether a chunk takes too long: the loop has become slow. With several ranks never: all have to fill theirs."""
        return self._agree is _alone and (now >= self.deadline or self.active_s > 2 * self._phase_s)

    def _close_chunk(self, now: float) -> None:
        iteration_s, fewest, elapsed, late = self._agree(
            self._chunk_s / max(1, self._chunk_iterations),
            -float(self._chunk_iterations),
            self.active_s,
            float(now >= self.deadline),
        )
        iterations = round(-fewest)
        if iterations and self._is_overdue(now):
            self._series.add(iterations * self.batch, iterations * iteration_s)
            self._start_chunk()
        elif iterations == 0 or iterations < self._size / 2:
            self._target += self._size  # too little of it counts: go on
        elif self._tunings < _TUNINGS and (size := self._better_size(iteration_s)) > self._size:
            self._size, self._tunings = size, self._tunings + 1
            self._start_chunk()
        else:
            self._series.add(iterations * self.batch, iterations * iteration_s)
            self._start_chunk()
        self.is_over = late > 0 or elapsed > 3 * self._phase_s or self._is_enough(elapsed)

    def _better_size(self, iteration_s: float) -> int:
        """A size of chunks that is long enough to time, in whole rounds of workers and of accumulated updates."""
        iterations = max(1, math.ceil(CHUNK_S / max(iteration_s, 1e-6)))
        accumulation = round(self._all_given / self._updates) if self._updates else 1
        rounds = math.lcm(max(1, self._rounds), accumulation if 1 <= accumulation <= _MOST_ACCUMULATION else 1)
        if rounds * iteration_s > self._phase_s / FEWEST:
            return iterations
        return rounds * math.ceil(iterations / rounds)

    def _is_enough(self, elapsed: float) -> bool:
        """Whether the rate is sure enough, or the phase takes too long."""
        if len(self._series.times) < FEWEST:
            return elapsed > 2 * self._phase_s
        is_sure = self._series.width < GOOD or self._phase_given >= self._enough
        return elapsed > self._phase_s or (is_sure and elapsed > self._phase_s / 3)
