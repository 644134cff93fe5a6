"""A job's matrix: by the cost model, corrected by a few measurements. Pure, but for the measuring that it is given.

CPU counts are measured by halves: first the most and the fewest, then the middle of that stretch over which the rate
changes most, as long as it changes by more than a tenth there. A count that seems slower than a smaller one is measured
once more, since something else took its cores meanwhile. The model is corrected such that it has the rates that were
measured, with the part of the data that was in memory meanwhile; between measured counts by what lies between, and never
faster than the larger of the two. Memory is what the processes have, plus a part of the data that is cached; what that does
is the model's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stoker.decide.model import Share, predict, scaled
from stoker.profile import Profile
from stoker.schedule.matrix import Matrix, Reads

MOST_MEASUREMENTS = 8
_FLAT = 1.1
"""A stretch over which the rate grows by less is not looked into."""
_ENOUGH = 0.99
"""A job wants the least with which it reaches this part of its best rate."""
_SPARE = 1.25
"""Memory that a job's processes are given, over the most that they were seen with in some seconds."""
_FAR = 8.0
_HALVES = 30
_NEAR = 1e-3
PARTS = 0.0, 0.25, 0.5, 0.75, 1.0
"""Of the data, that the memory axis stands for."""


def measured_counts(most: int, measure: Callable[[int], float], limit: int = MOST_MEASUREMENTS) -> dict[int, float]:
    """Rates at a few counts of CPUs, from 1 to the most."""
    known = {most: measure(most)}
    if most > 1:
        known[1] = measure(1)
    again: set[int] = set()
    while len(known) + len(again) < limit:
        counts = sorted(known)
        slower = [high for low, high in pairwise(counts) if known[low] > _FLAT * known[high] and high not in again]
        if slower:
            again.add(slower[0])
            known[slower[0]] = max(known[slower[0]], measure(slower[0]))
            continue
        stretches = [
            (known[high] / known[low], low, high)
            for low, high in pairwise(counts)
            if high - low > 1 and known[high] > _FLAT * known[low]
        ]
        if not stretches:
            break
        _, low, high = max(stretches)
        known[(low + high) // 2] = measure((low + high) // 2)
    return known


def process_memory_gb(seen_bytes: Iterable[int]) -> float:
    """What a job's processes need, where they were seen with so much: a lease that has less kills them."""
    return _SPARE * max(seen_bytes) / 1e9


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A rate that was measured, and the part of the data that was in memory meanwhile."""

    rate: float
    cached: float = 1.0


def matrix_of(profile: Profile, measured: Mapping[int, MeasuredRate], process_gb: float, core: float = 1.0) -> Matrix:
    """The matrix of a job whose rates were measured at some counts of CPUs."""
    counts = list(range(1, max(measured) + 1))
    parts = PARTS if profile.dataset.bytes and profile.rates.storage else PARTS[:1]
    at = sorted(measured)
    fitted = [_fitted(profile, count * core, measured[count]) for count in at]
    preps, errors = (np.interp(counts, at, values) for values in zip(*fitted, strict=True))
    modelled = np.array(
        [
            [_modelled(profile, count * core, part, prep) * error for part in parts]
            for count, prep, error in zip(counts, preps, errors, strict=True)
        ]
    )
    for low, high in pairwise(at):
        modelled[low : high - 1] = np.minimum(modelled[low : high - 1], modelled[high - 1])
    rates = np.maximum.accumulate(np.maximum.accumulate(modelled, axis=0), axis=1)
    memory = [process_gb + part * profile.dataset.bytes / 1e9 for part in parts]
    return Matrix(
        tuple(map(float, counts)),
        tuple(memory),
        tuple(tuple(map(float, row)) for row in rates),
        wanted(counts, memory, rates),
        Reads(profile.batch_size * profile.dataset.sample_bytes, process_gb, profile.dataset.bytes / 1e9),
    )


def wanted(counts: Sequence[float], memory: Sequence[float], rates: Any) -> tuple[float, float]:
    """The least of both with which a job is about as fast as with all."""
    enough = _ENOUGH * rates[-1][-1]
    row = next(number for number in range(len(counts)) if rates[number][-1] >= enough)
    column = next(number for number in range(len(memory)) if rates[row][number] >= enough)
    return float(counts[row]), float(memory[column])


def document(name: str, matrix: Matrix, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The matrix as `profiles` reads it: rates relative to the first."""
    base = matrix.rates[0][0]
    reads = {} if matrix.reads is None else asdict(matrix.reads)
    model = {
        "cpus": matrix.wanted[0],
        "mem": matrix.wanted[1],
        "iter_time": 1 / base,
        "tput": [[rate / base for rate in row] for row in matrix.rates],
        **reads,
        **facts,
    }
    return {"cpu_axis": matrix.cpus, "mem_axis_gb": matrix.memory_gb, "profiles": {"models": {name: model}}}


def _fitted(profile: Profile, cores: float, seen: MeasuredRate) -> tuple[float, float]:
    """How many times as fast as thought samples are prepared, such that the model is as was measured; and what is left.

    The store is as fast as was thought, so that what was measured with all data in memory says nothing against reading.
    """
    low, high = 1 / _FAR, _FAR
    if _modelled(profile, cores, seen.cached, 1.0) > seen.rate:
        high = 1.0
    else:
        low = 1.0
    for _ in range(_HALVES):
        middle = (low * high) ** 0.5
        if _modelled(profile, cores, seen.cached, middle) > seen.rate:
            high = middle
        else:
            low = middle
    near = _modelled(profile, cores, seen.cached, high)
    best = high if abs(near / seen.rate - 1) < _NEAR else 1.0  # where preparing is not the limit, it tells nothing of that
    return best, seen.rate / _modelled(profile, cores, seen.cached, best)


def _modelled(profile: Profile, cores: float, cached: float, prep: float) -> float:
    rates = scaled(profile.rates, "prep", prep)
    return predict(rates, Share(cores=cores, cached=cached)).rate / profile.batch_size
