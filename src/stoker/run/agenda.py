"""What an analysis has measured, what it is measuring, and the time that is left to it.

A step is done once, over all starts of the script: `found.done` names those that are. Nothing begins after the deadline.
"""

import os
import time
from collections.abc import Callable

from stoker.measure.busy import CoreWatch
from stoker.run.measured import Measured
from stoker.run.ranks import AnalysedRanks


class Agenda:
    """The steps of one analysis. Every rank must ask for the same ones in the same order."""

    def __init__(
        self,
        found: Measured,
        *,
        iterations: int,
        phase_s: float,
        deadline: float,
        peers: str = "",
        offload: str = "",
        tell: Callable[[str, float], None],
        save: Callable[[], None],
    ) -> None:
        self.found = found
        self.ranks = AnalysedRanks()
        self.iterations, self.phase_s, self.deadline = iterations, phase_s, deadline
        self.peers = peers
        """Hosts whose caches are measured, too, as HOST:PORT,..."""
        self.offload = offload
        """Where workers on other hosts dial this one, which are measured, too."""
        self.save = save
        """Called after every change of `found`."""
        self.step = ""
        """What is being measured, as in `found.done`."""
        self.left_s = 0.0
        """About how long all that is to come will take."""
        self._began = time.perf_counter()
        self._tell = tell
        self._watch = CoreWatch(os.getppid() if self.ranks.world > 1 else None)  # ranks are not others

    def has_time_for(self, step: str, reserved: float = 0.0) -> bool:
        """Whether to do a step now. A part of all time may be reserved for what comes later."""
        if step in self.found.done or self._is_past(self.deadline - reserved * (self.deadline - self._began)):
            return False
        self.step = step
        return True

    @property
    def is_over(self) -> bool:
        """Whether the deadline is past."""
        return self._is_past(self.deadline)

    def grant(self, seconds: float) -> None:
        """Have so much more time for the whole analysis, because there is more to measure than usual.

        What an earlier start of the script was granted is in the time that this one has.
        """
        self.deadline += max(0.0, seconds - self.found.granted_s)
        self.left_s += seconds
        self.found.granted_s = max(seconds, self.found.granted_s)
        self.save()

    def finish(self, step: str) -> None:
        """Note that a step is done, and whether other processes took cores meanwhile."""
        self.step = ""
        self.found.done.append(step)
        load = self._watch.load()
        if load.matters and load.taken > self.found.others:
            self.found.others = load.taken
            self.found.busy = load.words()
        self.save()

    def note_what_is_missing(self) -> None:
        """Note for the report what was not measured because the time was over."""
        if self.is_over:
            self.found.note("the time was too short for all measurements (--time gives each more of it)")

    def say(self, what: str) -> None:
        """Tell the user what is measured now."""
        self._tell(what, max(0.0, self.left_s))

    def _is_past(self, moment: float) -> bool:
        return bool(self.ranks.largest(float(time.perf_counter() >= moment)))
