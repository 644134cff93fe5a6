"""A job's sensitivity: iterations per second, by the CPUs and the memory that each of its GPUs has.

The matrix is known at grid points. In between counts the largest point that is not above, on each axis; below the first
point counts the first.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stoker.errors import ConfigError

_SLACK = 1e-9
"""Part of a value by which rounding may have made it smaller."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What one GPU's part of a job reads, where that was measured."""

    iteration_bytes: float
    """In one iteration, from storage or a cache."""
    process_gb: float
    """Memory of its processes: what it has beyond holds data."""
    dataset_gb: float

    def from_storage(self, memory_gb: float) -> float:
        """The part that is not in memory."""
        held = (memory_gb - self.process_gb) / self.dataset_gb if self.dataset_gb else 1.0
        return 1.0 - min(1.0, max(0.0, held))


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Two axes, each rising; a row of rates for each number of CPUs; and the point that the job wants."""

    cpus: tuple[float, ...]
    memory_gb: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]
    wanted: tuple[float, float]
    """CPUs and memory for each GPU, beyond which nothing is gained."""
    reads: Reads | None = None
    _known: dict[tuple[float, float], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, axis in (("CPUs", self.cpus), ("memory", self.memory_gb)):
            if not axis or any(later <= sooner for sooner, later in pairwise(axis)) or axis[0] <= 0:
                raise ConfigError(f"the matrix needs an axis of {name} that rises and begins above 0, not {list(axis)}")
        if len(self.rates) != len(self.cpus):
            raise ConfigError(f"the matrix has {len(self.rates)} rows for {len(self.cpus)} numbers of CPUs")
        for count, row in zip(self.cpus, self.rates, strict=True):
            if len(row) != len(self.memory_gb):
                raise ConfigError(f"the matrix's row for {count:g} CPUs has {len(row)} of {len(self.memory_gb)} values")
            for size, rate in zip(self.memory_gb, row, strict=True):
                if not 0 < rate < float("inf"):
                    raise ConfigError(f"the matrix has no rate for {count:g} CPUs and {size:g} GB: {rate} is not above 0")

    def rate(self, cpus: float, memory_gb: float) -> float:
        """Iterations per second with so much for each GPU."""
        asked = cpus, memory_gb
        found = self._known.get(asked)
        if found is None:
            found = self._known[asked] = self.rates[_below(self.cpus, cpus)][_below(self.memory_gb, memory_gb)]
        return found

    def storage_mb_s(self, memory_gb: float, rate: float) -> float:
        """What each GPU's part of a job reads from storage at a rate, with so much memory; 0 where that is not known."""
        if self.reads is None:
            return 0.0
        return rate * self.reads.iteration_bytes * self.reads.from_storage(memory_gb) / 1e6

    def trimmed(self, cpus: float, memory_gb: float) -> tuple[float, float]:
        """The least for each GPU that is as fast as this, and is not more of either."""
        row, column = _below(self.cpus, cpus), _below(self.memory_gb, memory_gb)
        rate = self.rates[row][column]
        row = next(one for one in range(row + 1) if self.rates[one][column] >= rate)
        column = next(one for one in range(column + 1) if self.rates[row][one] >= rate)
        return min(cpus, self.cpus[row]), min(memory_gb, self.memory_gb[column])

    def corrected(self, cpus: float, memory_gb: float, rate: float) -> "Matrix":
        """The same with a measured rate at one point; where more would be slower, or less faster, that follows."""
        row, column = _below(self.cpus, cpus), _below(self.memory_gb, memory_gb)

        def mended(at_row: int, at_column: int) -> float:
            known = self.rates[at_row][at_column]
            if (at_row, at_column) == (row, column):
                return rate
            if at_row <= row and at_column <= column:
                return min(known, rate)
            return max(known, rate) if at_row >= row and at_column >= column else known

        rates = tuple(tuple(mended(one, other) for other in range(len(self.memory_gb))) for one in range(len(self.cpus)))
        return Matrix(self.cpus, self.memory_gb, rates, self.wanted, self.reads)


def flat(rate: float) -> Matrix:
    """The matrix of a job that is as fast with any share: nothing is known of it, or nothing helps it."""
    return Matrix((1.0,), (1.0,), ((rate,),), (1.0, 1.0))


def _below(axis: Sequence[float], value: float) -> int:
    return max(0, bisect_right(axis, value * (1 + _SLACK)) - 1)
