"""How far an analysis is: what the script's process tells of its phase, and what the command makes of it.

The script's process writes a small file when a phase begins. The command looks at it several times a second, and before
there is one it tells for how long the script has been starting. What is left is an estimate: it is the usual time until the
script says more, and shrinks when a phase turns out not to be needed. The part that is done never becomes less.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.profile import write_text
from stoker.run.measured import Measured

USUAL_PHASES = 10
"""How many phases an analysis has, mostly."""
STARTING = "the script starts"
_WORDS = {
    "the loop alone": "the loop, always fed",
    "the loop and the way to the device": "the way to the device",
    "cached samples": "the loop, data in memory",
    "cold samples": "the loop, data from storage",
}
"""Phases whose names do not say what is measured."""


@dataclass(frozen=True, slots=True)
class AnalysisProgress:
    """How far an analysis is at one moment."""

    what: str
    elapsed_s: float
    left_s: float
    part: float
    """What is done, from 0 to 1."""
    known: tuple[str, ...]
    """What has been measured, in words."""


def tell(place: str, what: str, left_s: float) -> None:
    """In the script's process: a phase begins, and all that is to come takes about so long."""
    write_text(place, json.dumps({"what": _WORDS.get(what, what), "left_s": left_s, "at": time.monotonic()}))


class AnalysisFollower:
    """The command's view of a script under analysis."""

    def __init__(self, place: Path, measured: Path, phase_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._measured, self._clock = place, measured, clock
        self._usual_s = USUAL_PHASES * phase_s
        self._began = clock()
        self._part = 0.0

    def look(self) -> AnalysisProgress:
        """How far it is now."""
        now, found = self._clock(), Measured.load(self._measured)
        try:
            told = json.loads(self._place.read_text())
        except FileNotFoundError:
            told = {"what": STARTING, "left_s": self._usual_s, "at": now}
        elapsed_s, left_s = now - self._began, max(0.0, told["left_s"] - (now - told["at"]))
        if told["what"] != STARTING:
            self._part = max(self._part, elapsed_s / max(1e-9, elapsed_s + left_s))
        return AnalysisProgress(told["what"], elapsed_s, left_s, min(0.99, self._part), tuple(found.parts if found else ()))
