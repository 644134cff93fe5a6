"""Repeated measurements of one rate, and how sure they are. Pure."""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

FEWEST = 4
SAVED_S = 0.15
"""What a store with a quota saved up while nobody read is spent after so long."""
# Student's t for 95 %, by degrees of freedom; 1.96 beyond.
_T = {
    1: 12.7,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    9: 2.26,
    10: 2.23,
    12: 2.18,
    15: 2.13,
    20: 2.09,
}


@dataclass(slots=True)
class Series:
    """Times of equal amounts of work."""

    amount: float = 0.0
    times: list[float] = field(default_factory=list)

    def add(self, amount: float, seconds: float) -> None:
        """One more; all have the same amount."""
        self.amount = amount
        self.times.append(seconds)

    @property
    def rate(self) -> float:
        """Work per second, over all of them."""
        return self.amount * len(self.times) / sum(self.times) if self.times else 0.0

    @property
    def width(self) -> float:
        """The relative half-width of a 95 % interval; 1 if there are too few to tell."""
        times = self.times
        if len(times) < FEWEST:
            return 1.0
        mean = statistics.fmean(times)
        t = _T.get(len(times) - 1) or next((value for freedom, value in _T.items() if freedom >= len(times) - 1), 1.96)
        return t * statistics.stdev(times) / math.sqrt(len(times)) / mean if mean > 0 else 0.0


def stretches(ends: Sequence[float], least_s: float) -> list[float]:
    """Seconds per event in stretches of at least so long, each from one long wait to a later one.

    A store with a quota may give what is due for a tenth of a second at once, and then nothing until the next (Linux's
    throttle of block devices does). A stretch that began or ended somewhere in between would count a part of that. Waits
    are long that are at least half as long as the one in which the store is at a random moment. What comes at the
    beginning was saved up before, and does not count, if there is enough without it. Of very few there is one stretch, from
    the beginning.
    """
    if not ends:
        return []
    whole = [ends[-1] / len(ends)]
    if ends[-1] > 2 * SAVED_S + least_s:
        ends = ends[bisect.bisect(ends, SAVED_S) :]
    waits = [later - end for end, later in itertools.pairwise(ends)]
    by_length = sorted(waits)
    middle = bisect.bisect(list(itertools.accumulate(by_length)), sum(waits) / 2)
    borders = [number for number, wait in enumerate(waits) if wait >= by_length[min(middle, len(waits) - 1)] / 2]
    if len(borders) < 2 or ends[borders[-1]] - ends[borders[0]] < least_s:
        return whole
    found, begin = [], borders[0]
    for border in borders[1:]:
        if ends[border] - ends[begin] >= least_s:
            found.append((ends[border] - ends[begin]) / (border - begin))
            begin = border
    return found
