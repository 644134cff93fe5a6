"""How preparation is split between this host and others while a job runs: measured at first, then followed. Pure.

    HERE   everything is prepared here: does the loop wait, and what does this host prepare?   -> L, P
    LOOP   where it waits, the loop is timed over batches that are ready                       -> G
    ALL    others prepare as much as they can, if they are there and could help, each part     -> R, O
           of the preparation for a while that they could do
    LIVE   `decide.offload` on what is known, after each look; what has changed is seen there

Rule: nothing is done for the sake of measuring that is known already, and batches are the same in all stages. Every look
brings its own time; there is no clock here.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from stoker.decide.looks import ALL, Known, Look, There, together
from stoker.decide.offload import WORTH, Offload, Remote, decide, workers_needed

TIMINGS = 3
"""So often the loop is timed."""
CALM, STALLED = 0.03, 0.05
"""Parts of its time that a loop waits: below the first it gets all that it takes, above the second it does not."""
_ENOUGH_LOOKS = 2
_STAY_WORTH = 1.05
_STEP = 0.02
_DRIFT = 0.1
_SURELY = 0.99
_SMOOTHED = 3
_HARM = 0.95
_NEW = 0.6
"""How much a new look counts against those before."""
_SATURATED, _HARDLY_BUSY = 0.85, 0.3
_MORE = 1.15
_FEWEST_PAUSES, _MOST_PAUSES = 10, 60
_PAUSES_FOR_TIMING = 10
_FEWEST_UNTIL_OTHERS, _MOST_UNTIL_OTHERS = 60, 600
_MOST_SKIPPED = 5


class SplitStage(Enum):
    """What is being done."""

    HERE = "here"
    LOOP = "loop"
    ALL = "all"
    LIVE = "live"


class Split:
    """The part of all samples that other hosts prepare, look by look."""

    def __init__(self, known: Known | None = None, parts: Sequence[str] = (ALL,)) -> None:
        self.known = known = known or Known()
        self.parts = parts
        """The parts of the preparation that others can do, as far as is known."""
        self.part = parts[0]
        """The one that works are given with."""
        self.ratio = 0.0
        self.timings = 0
        """How often the loop should have been timed by now."""
        self.decision: Offload | None = None
        self.stage = SplitStage.HERE if known.local is None or known.loop is None else SplitStage.LIVE
        self._looks: list[Look] = []
        self._skip, self._skipped = self.stage is SplitStage.HERE, 0
        self._workers = 0
        self._calm = self._bound = self._bound_before = 0.0
        self._able: deque[float] = deque(maxlen=_SMOOTHED)
        """What own workers were able to make in the latest looks."""
        self._pauses, self._paused, self._turn = _FEWEST_PAUSES, 0, -1
        self._usual = self.part
        """The part that was done before another one was tried."""
        self._until_others = self._stalled = _FEWEST_UNTIL_OTHERS
        """Looks at a stall until another part is tried again, each time twice as many; and how many are left."""
        self._harm = 0
        """Looks in which this host alone would have been faster."""
        self._since_timing = 0
        self._is_asked = False
        """Whether the loop is being timed again."""

    @property
    def most(self) -> float:
        """The part that may go away. Where remote workers are the limit, that is all: they take what own workers do not."""
        decision, loop = self.decision, self.known.loop or 0.0
        is_remote_limit = self.ratio > 0 and decision is not None and decision.rate < _SURELY * loop
        return 1.0 if is_remote_limit else self.ratio

    def look(self, look: Look) -> None:
        """Go on after a look."""
        if look.seconds <= 0 or look.here + look.there + look.taken <= 0:
            return  # the loop does something else
        self._workers = look.workers
        if self.stage is SplitStage.LIVE:
            self._follow(look)
            self._try_parts()
            return
        if self._skip or look.is_mixed:  # it belongs to the stage before, or remote workers are just beginning
            self._skipped += 1
            self._skip = self.stage is SplitStage.ALL and not look.there and self._skipped < _MOST_SKIPPED
            return
        self._looks.append(look)
        if self.stage is SplitStage.LOOP:
            if len(look.timings) >= self.timings:
                self._loop_is_known(statistics.median(look.timings[-TIMINGS:]))
        elif len(self._looks) >= _ENOUGH_LOOKS:
            (self._here_is_known if self.stage is SplitStage.HERE else self._all_is_known)(together(self._looks))

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being measured that the decision waits for."""
        return self.stage in (SplitStage.HERE, SplitStage.LIVE)

    @property
    def _could_help(self) -> bool:
        """Whether the loop takes more than this host prepares, and remote workers are there."""
        return self._workers > 0 and (self.known.loop or 0.0) >= WORTH * (self.known.local or math.inf)

    # ---- measuring

    def _here_is_known(self, look: Look) -> None:
        if look.waited < STALLED:
            self.known = replace(self.known, loop=look.taken / look.seconds)
            self._looks = self._looks[1:]  # go on looking
            self._settle(Offload(None, 0.0, look.taken / look.seconds, 0, _NO_STALL.format(look.taken / look.seconds)))
            return
        per_sample = look.cpu_here / look.here if look.here and look.cpu_here else None
        self.known = replace(self.known, local=look.here / look.seconds, cpu_here=per_sample)
        self._bound = look.taken / look.seconds / max(1 - look.waited, 0.01)
        self.timings = len(look.timings) + TIMINGS
        self._begin(SplitStage.LOOP)
        self._skip = False

    def _loop_is_known(self, rate: float) -> None:
        self.known = replace(self.known, loop=rate)
        self._begin(SplitStage.LIVE)
        self._decide()
        self._try_parts()

    def _try_parts(self) -> None:
        """Let others do a part that was not tried, if that could help."""
        untried = [part for part in self.parts if part not in self.known.there]
        if untried and self._could_help:
            self._begin_all(untried[0])

    def _all_is_known(self, look: Look) -> None:
        if look.there and self.part in self.parts and not self._is_harm(look):
            busy = 1.0 if look.busy_there > _SATURATED else max(look.busy_there, _HARDLY_BUSY)
            rate = look.there / look.seconds / busy / max(1, look.workers)
            able = look.here / max(look.busy_here, _HARDLY_BUSY)
            loss = min(1.0, max(0.0, ((self.known.local or 0.0) * look.seconds - able) / look.there))
            there = There(rate, look.cpu_there / look.there or None, loss)
        else:
            there = There(0.0)
        self.known = self.known.with_there(self.part, there)
        self._begin(SplitStage.LIVE)
        self.part = self._usual if self._usual in self.parts else self.parts[0]  # unless another one is better
        self._decide()
        self._try_parts()

    def _is_harm(self, look: Look) -> bool:
        """Whether this host alone would be faster."""
        return look.waited > STALLED and look.taken / look.seconds < _HARM * (self.known.local or 0.0)

    def _begin_all(self, part: str) -> None:
        self._begin(SplitStage.ALL)
        self.part, self.ratio = part, 1.0

    def _begin(self, stage: SplitStage) -> None:
        self.stage, self._looks, self._skip, self._skipped = stage, [], True, 0

    # ---- following

    def _follow(self, look: Look) -> None:
        self._follow_loop(look)
        here, there = look.here / look.seconds, look.there / look.seconds
        busy_here = look.busy_here if look.workers else 1.0  # without remote workers the relay looks rarely
        if busy_here > _HARDLY_BUSY and here and (look.workers or look.waited > STALLED):
            self._able.append(here / busy_here + (self.known.cost(self.part) * there if there else 0.0))
            self.known = replace(
                self.known,
                local=_blended(self.known.local, statistics.median(self._able)),
                cpu_here=_blended(self.known.cpu_here, look.cpu_here / look.here) if look.cpu_here else self.known.cpu_here,
            )
        if look.workers and self.ratio > 0 and not look.is_mixed:
            self._follow_remote(look, there)
            self._harm = self._harm + 1 if self._is_harm(look) else 0
            if self._harm >= _ENOUGH_LOOKS:  # own workers wait for what comes too late
                self._harm = 0
                self.known = self.known.with_there(self.part, There(0.0))
        self._decide()
        if self._could_help and self.ratio == 0 and self.known.there and look.waited > STALLED:
            self._paused += 1
            if self._paused >= self._pauses:  # they may have become faster
                self._paused, self._pauses = 0, min(2 * self._pauses, _MOST_PAUSES)
                self._begin_all(self._another_part())
        elif self.ratio > 0:
            self._paused, self._pauses = 0, _FEWEST_PAUSES
            self._try_others(look)

    def _try_others(self, look: Look) -> None:
        """Where the loop still waits, another part may have become better."""
        self._usual = self.part
        self._stalled -= look.waited > STALLED
        if self._stalled <= 0 and len(self.parts) > 1:
            self._until_others = min(2 * self._until_others, _MOST_UNTIL_OTHERS)
            self._stalled = self._until_others
            other = self._another_part()
            self._begin_all(other if other != self.part else self._another_part())

    def _follow_loop(self, look: Look) -> None:
        taken, loop = look.taken / look.seconds, self.known.loop
        if loop is None:
            return
        now = taken / max(1 - look.waited, 0.01)
        bound, self._bound_before = max(now, self._bound_before), now  # one that was held up once is not slow
        self._since_timing += 1
        if self._is_asked and len(look.timings) >= self.timings:
            self._is_asked = False
            loop, self._bound = look.timings[-1], bound
        elif look.waited < CALM:
            is_steady = abs(taken - self._calm) <= _DRIFT * taken
            self._calm = taken
            if taken > loop or is_steady:  # or else the loop did something else for a while
                loop = _blended(loop, taken)
        elif bound < loop:
            loop = _blended(loop, bound)
        elif self._bound and bound > (1 + _DRIFT) * self._bound and self._since_timing >= _PAUSES_FOR_TIMING:
            self.timings = len(look.timings) + 1  # it may take more than before
            self._is_asked, self._since_timing = True, 0
        self.known = replace(self.known, loop=loop)

    def _another_part(self) -> str:
        """Each in its turn."""
        self._turn += 1
        return self.parts[self._turn % len(self.parts)]

    def _follow_remote(self, look: Look, there: float) -> None:
        known = self.known.there[self.part]
        rate, cpu = known.rate, known.cpu
        if look.busy_there > _SATURATED:
            rate = _blended(rate, there / look.workers)
        elif look.waited > STALLED:  # it could give more than it may
            rate = max(rate, there / max(look.busy_there, _HARDLY_BUSY) / look.workers) * _MORE
        if look.there:
            cpu = _blended(cpu, look.cpu_there / look.there)
        self.known = self.known.with_there(self.part, There(rate, cpu, known.loss))

    def _decide(self) -> None:
        known = self.known
        if not known.loop or not known.local:
            return
        useful = {part: there for part, there in known.there.items() if part in self.parts}
        remotes = {
            part: Remote(there.rate * self._workers, known.cost(part), self._workers)
            for part, there in useful.items()
            if self._workers
        }
        decision = decide(known.loop, known.local, remotes, _STAY_WORTH if self.ratio else WORTH)
        if self.ratio and self.part in remotes:
            same = decide(known.loop, known.local, {self.part: remotes[self.part]}, _STAY_WORTH)
            decision = same if same.ratio and decision.rate < _STAY_WORTH * same.rate else decision
        if not self._workers and known.loop >= WORTH * known.local:  # so that some are asked for
            alike = [Remote(there.rate, known.cost(part)) for part, there in useful.items() if there.rate]
            wanted = min((workers_needed(known.loop, known.local, one) for one in alike), default=1)
            decision = replace(decision, workers=wanted)
        self._settle(decision)

    def _settle(self, decision: Offload) -> None:
        self.decision = decision
        self.part = decision.part or self.part
        if abs(decision.ratio - self.ratio) >= _STEP or not decision.ratio:
            self.ratio = decision.ratio


_NO_STALL = "the loop takes {:.0f} samples/s, and hardly waits for them"


def _blended(before: float | None, new: float) -> float:
    return new if before is None else before + _NEW * (new - before)
