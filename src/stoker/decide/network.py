"""Workers that read and prepare in turn: the rate of a closed network of two stations. Pure; counts in, a rate out.

Of W workers n read at some moment, and W - n prepare. Each station has its own rate for every number at work. A fraction
`misses` of all samples has to be read. Two answers bound the rate:

    smooth    n never changes:           P(W - n) misses = S(n), and the rate is P(W - n)
    random    times are exponential:     n is a birth-death chain, and the rate is the sum of p(n) P(W - n)

`smooth` is the larger, because the curves bend down. The truth lies between them, at `chance`: 0 where all samples take
the same time, 1 where their times differ as much as their mean.
"""

from collections.abc import Callable, Mapping

_FLAT = 0.2
"""One more that adds less than this part of what the first ones gave each is noise: there is no more to be had."""
_BEYOND = 4
"""Counts up to so many times the largest measured are extrapolated to."""
_HALVINGS = 32


class Curve:
    """A rate by the number of busy workers: straight between the measured counts, from 0 at 0.

    Beyond the largest count it goes on with the last slope, or stays constant if not `growing`.
    """

    def __init__(self, points: Mapping[int, float], *, growing: bool) -> None:
        self.counts = [0, *points]
        self.rates = [0.0, *points.values()]
        (before, last), (below, top) = self.counts[-2:], self.rates[-2:]
        slope = min((top - below) / (last - before), top / last)
        self.slope = slope if growing and slope >= _FLAT * top / last else 0.0

    def __call__(self, count: float) -> float:
        """The rate of so many; any number from 0."""
        last = self.counts[-1]
        if count >= last:
            return self.rates[-1] + self.slope * (min(count, _BEYOND * last) - last)
        number = next(number for number, upper in enumerate(self.counts) if count < upper)
        lower, below = self.counts[number - 1], self.rates[number - 1]
        return below + (self.rates[number] - below) * (count - lower) / (self.counts[number] - lower)


def throughput(
    workers: int, prepare: Callable[[float], float], read: Callable[[float], float], misses: float, chance: float
) -> float:
    """Samples per second of workers that prepare all samples and read some of them."""
    readers = last_root(lambda n: prepare(workers - n) * misses - read(n), float(workers))
    smooth = prepare(workers - readers)
    rates = [prepare(count) for count in range(workers + 1)]
    weight, total, weighted = 1.0, 1.0, rates[workers]
    for reading in range(1, workers + 1):
        weight *= rates[workers - reading + 1] * misses / read(reading)
        total += weight
        weighted += weight * rates[workers - reading]
        if total > 1e200:  # only the proportions matter
            weight, total, weighted = weight / total, 1.0, weighted / total
    return smooth - max(0.0, smooth - weighted / total) * min(1.0, chance)


def from_either(count: float, first: Callable[[float], float], second: Callable[[float], float], part: float) -> float:
    """Samples per second of so many readers, where a part of all samples is at the first place and the rest at the second.

    As many read at each place as give samples in this proportion. One reader alone goes from one to the other, and its
    times add up; of many, those at one place do not hold up those at the other.
    """
    if part <= 0 or part >= 1:
        return first(count) if part >= 1 else second(count)
    at_first = last_root(lambda n: second(count - n) / (1 - part) - first(n) / part, count)
    return first(at_first) / part


def last_root(falling: Callable[[float], float], at_most: float) -> float:
    """Where a falling function reaches 0, between 0 and `at_most`."""
    if falling(at_most) >= 0:
        return at_most
    low, high = 0.0, at_most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) >= 0 else (low, middle)
    return low
