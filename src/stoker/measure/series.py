"""Repeated measurements of one rate, and how sure they are. Pure."""

import math
import statistics
from dataclasses import dataclass, field

FEWEST = 4
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
