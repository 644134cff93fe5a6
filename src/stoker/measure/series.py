"""Repeated measurements of one rate, and how sure they are. Pure."""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

FEWEST = 4
_FEW = 0.1
"""Fewer pieces than that are never surer, however alike they are."""
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
    """Times of pieces of work, with how much was done in each."""

    amounts: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, amount: float, seconds: float) -> None:
        """One more piece."""
        self.amounts.append(amount)
        self.times.append(seconds)

    def drop_last(self) -> None:
        """Take the last piece back."""
        self.amounts.pop()
        self.times.pop()

    @property
    def rate(self) -> float:
        """Work per second, over all pieces."""
        return sum(self.amounts) / sum(self.times) if self.times else 0.0

    @property
    def width(self) -> float:
        """The relative half-width of a 95 % interval of the rate; 1 of a single piece, and never more."""
        count = len(self.times)
        if count < 2:
            return 1.0
        units = [seconds / amount for amount, seconds in zip(self.amounts, self.times, strict=True)]
        mean = statistics.fmean(units)
        if mean <= 0:
            return 0.0
        t = _T.get(count - 1) or next((value for freedom, value in _T.items() if freedom >= count - 1), 1.96)
        width = t * statistics.stdev(units) / math.sqrt(count) / mean
        return min(1.0, width if count >= FEWEST else max(_FEW, width))


def stretches(ends: Sequence[float], least_s: float) -> list[float]:
    """Seconds per event in stretches of at least so long, each from one long wait to a later one.

    A store with a quota may give a tenth of a second's worth at once, and then nothing until the next tenth (Linux's
    throttle of block devices does). A stretch that began or ended in between would count only a part of that. A wait is
    long if it is at least half as long as the wait that a random moment falls into. What comes at the beginning was saved
    up before. It does not count, if there is enough without it. Very few events are one stretch, from the beginning.
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
