"""How long it takes to load a batch, by the number of workers who do it. Workers are assigned by it. Pure.

A `SampleTime` is one curve: the seconds that so many workers together take for a sample. It is piecewise linear, and
may rise again: preparing that uses up the memory's bandwidth does. A `Portfolio` has a curve for each size of sample
that was measured. `Loading` puts three of them together to the published Eq. 1, with b the samples that come from here,
from a peer and from storage, and T(n) the rate of one thread among n. n T(n) is the rate of all n, so that a term is
samples times `SampleTime(n)`:

    T_L = b_here / (a T_here(a)) + b_peer / (b T_peer(b)) + b_storage / (c T_storage(c))

The equation can be read in two ways. Both are here, by the name of their pools:

    shared      each of n workers takes what comes next: a = b = c = n, and the terms add up. Ours do that; the default
    disjoint    workers of their own for each kind, a + b + c = n: kinds are loaded side by side, so that the longest term
                counts, with the split that makes it shortest. The printed sum would count time twice
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stoker.decide.network import Curve
from stoker.errors import ConfigError
from stoker.profile import Rates

Seconds = NDArray[np.float64]
"""How long something takes, by the number of workers from 0: for ever with nobody, unless there is nothing to do."""

POOLS = ("shared", "disjoint")
_TRUST = 0.25
"""How much one measurement moves a curve: four of them move it by two thirds of the way."""
_MOST_OFF = 4.0
"""One measurement counts as at most so many times off: a host that stood still for a second tells little."""


@dataclass(frozen=True, slots=True)
class SampleTime:
    """Seconds for a sample by the number of workers: straight between the known counts, constant outside of them."""

    points: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.points or any(count < 1 or not 0 <= time < math.inf for count, time in self.points.items()):
            raise ConfigError(f"a curve needs times for numbers of workers from 1, not {dict(self.points)}")
        object.__setattr__(self, "points", dict(sorted(self.points.items())))

    @classmethod
    def of_rates(cls, rates: Mapping[int, float], *, growing: bool = True) -> Self:
        """The curve of measured rates: between the counts and beyond them as the cost model has it."""
        curve, last = Curve(rates, growing=growing), max(rates)
        return cls({count: 1 / curve(count) for count in range(1, 4 * last + 1)})

    def __call__(self, workers: int) -> float:
        """Seconds for a sample, by so many; at least one."""
        return float(self.table(workers)[workers])

    def table(self, most: int) -> Seconds:
        """For all numbers of workers from 0."""
        found: Seconds = np.interp(np.arange(most + 1), list(self.points), list(self.points.values()))
        found[0] = math.inf
        return found

    @property
    def best_workers(self) -> int:
        """The smallest number with which a sample takes the shortest time: a knot, as between two knots nothing turns."""
        return min(self.points, key=lambda count: (self.points[count], count))

    def scaled(self, factor: float) -> "SampleTime":
        """The curve of something that takes so many times as long."""
        return SampleTime({count: time * factor for count, time in self.points.items()})


@dataclass(frozen=True, slots=True)
class Portfolio:
    """Curves by the size of a sample in bytes. For another size the nearest curve is taken as it is.

    Not scaled or interpolated: what a sample costs beside its bytes (a round trip, a decoder's start) is not known from
    two.
    """

    curves: Mapping[int, SampleTime]

    def __post_init__(self) -> None:
        if not self.curves:
            raise ConfigError("a portfolio needs a curve")

    def nearest(self, sample_bytes: float) -> SampleTime:
        """The curve of the nearest size; of two that are as near, the smaller one's."""
        return self.curves[min(self.curves, key=lambda size: (abs(size - sample_bytes), size))]

    def scaled(self, factor: float) -> "Portfolio":
        """All curves of something that takes so many times as long."""
        return Portfolio({size: curve.scaled(factor) for size, curve in self.curves.items()})


def alone(curve: SampleTime) -> Portfolio:
    """A portfolio of one curve, for samples of any size."""
    return Portfolio({0: curve})


@dataclass(frozen=True, slots=True)
class Needs:
    """What a batch is loaded from, in samples, and how large these are on average."""

    here: float = 0.0
    peer: float = 0.0
    storage: float = 0.0
    sample_bytes: float = 0.0

    @property
    def samples(self) -> float:
        """All samples of the batch."""
        return self.here + self.peer + self.storage


@dataclass(frozen=True, slots=True)
class Loading:
    """The three kinds of places a sample comes from. A peer that was never measured counts as storage."""

    here: Portfolio
    storage: Portfolio
    peer: Portfolio | None = None
    pools: str = "shared"

    def __post_init__(self) -> None:
        if self.pools not in POOLS:
            raise ConfigError(f"pools are one of {', '.join(POOLS)}, not {self.pools!r}")

    @classmethod
    def of_rates(cls, rates: Rates, sample_bytes: float = 0.0) -> Self:
        """From what `stoker analyze` measured. What was not measured costs nothing: there was nothing to read."""
        size = round(sample_bytes)
        store = {count: rate for count, rate in rates.storage_by_readers.items() if count and rate}
        if rates.storage:
            store.setdefault(max(1, rates.workers), rates.storage)
        cache = {max(1, rates.workers): rates.cache} if rates.cache else {}
        free = SampleTime({1: 0.0})
        here = SampleTime.of_rates(cache) if cache else free
        return cls(
            Portfolio({size: here}), Portfolio({size: SampleTime.of_rates(dict(sorted(store.items()))) if store else free})
        )

    def seconds(self, needs: Needs, most: int) -> Seconds:
        """T_L of Eq. 1 for all numbers of workers up to `most`."""
        if needs.samples <= 0:
            return np.zeros(most + 1)
        peer = self.peer or self.storage
        terms = [
            count * portfolio.nearest(needs.sample_bytes).table(most)
            for portfolio, count in ((self.here, needs.here), (peer, needs.peer), (self.storage, needs.storage))
            if count
        ]
        summed: Seconds = np.sum(terms, axis=0)
        return summed if self.pools == "shared" or len(terms) == 1 else _side_by_side(terms, summed)

    def corrected(self, predicted_s: float, measured_s: float, trust: float = _TRUST) -> "Loading":
        """The same with all curves moved towards what a meter saw."""
        by = correction(predicted_s, measured_s, trust)
        peer = self.peer.scaled(by) if self.peer else None
        return replace(self, here=self.here.scaled(by), peer=peer, storage=self.storage.scaled(by))


def correction(predicted_s: float, measured_s: float, trust: float = _TRUST) -> float:
    """The factor for a curve that predicted one time where another was seen: a part of the way, in proportion.

    Factors are multiplied, so that twice too slow and then twice too fast leave the curve as it was.
    """
    if predicted_s <= 0 or measured_s <= 0:
        return 1.0
    return float(min(_MOST_OFF, max(1 / _MOST_OFF, measured_s / predicted_s)) ** trust)


def _side_by_side(terms: list[Seconds], summed: Seconds) -> Seconds:
    """The shortest longest term for each number of workers: one more always goes to the pool that takes longest.

    With fewer workers than kinds, the kinds are loaded one after the other. A worker that would make a pool slower idles.
    """
    found = summed.copy()
    best = [np.minimum.accumulate(term) for term in terms]
    given = [1] * len(terms)
    for count in range(len(terms), len(summed)):
        if count > len(terms):
            longest = max(range(len(terms)), key=lambda number: best[number][given[number]])
            given[longest] += 1
        found[count] = max(term[workers] for term, workers in zip(best, given, strict=True))
    return found
