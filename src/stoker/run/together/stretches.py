"""Times of iterations, from what a live record said batch by batch. Pure.

A mark is what was seen just after a batch. Storage with a quota gives in pieces of a tenth of a second, so the first and
the last mark alone would be wrong by several per cent: times are the slopes of lines through all marks. What storage saved
up while nobody read is given at once, and what was queued has been read before: neither counts as from storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.live.record import Seen
from stoker.measure.series import SAVED_S

_FEWEST = 3


@dataclass(frozen=True, slots=True)
class Stretch:
    """What some iterations took on average."""

    period_s: float
    compute_s: float
    iterations: int

    @property
    def wait_s(self) -> float:
        """What is not computing."""
        return max(0.0, self.period_s - self.compute_s)


def stretch(marks: Sequence[Seen]) -> Stretch | None:
    """What an iteration takes over some marks; None if there are too few."""
    if len(marks) < _FEWEST:
        return None
    batches = [mark.batches for mark in marks]
    period_s = _slope(batches, [mark.left_at for mark in marks])
    compute_s = _slope(batches, [mark.left_at - mark.wait_s for mark in marks])
    return Stretch(max(period_s, 1e-6), min(max(compute_s, 0.0), max(period_s, 1e-6)), batches[-1] - batches[0])


def _slope(across: Sequence[float], up: Sequence[float]) -> float:
    middle, height = sum(across) / len(across), sum(up) / len(up)
    spread = sum((one - middle) ** 2 for one in across)
    return sum((one - middle) * (other - height) for one, other in zip(across, up, strict=True)) / spread


def from_cache(marks: Sequence[Seen], queued: int) -> Sequence[Seen]:
    """The marks before the first read from storage, but for batches that were queued before."""
    first, _ = _cold(marks)
    return [mark for mark in marks[:first] if mark.batches >= marks[0].batches + queued]


def from_storage(marks: Sequence[Seen], queued: int) -> Sequence[Seen]:
    """The marks at which most samples come from storage, once that shows in the loop."""
    first, last = _cold(marks)
    if first >= len(marks):
        return []
    begin = marks[first]
    return [
        mark
        for mark in marks[first : last + 1]
        if mark.batches >= begin.batches + queued and mark.left_at >= begin.left_at + 2 * SAVED_S
    ]


def _cold(marks: Sequence[Seen]) -> tuple[int, int]:
    """The first and the last mark whose batch came from storage for the most part; no such: beyond the last."""
    cold, hits, misses = [], 0, 0
    for number, mark in enumerate(marks):
        if mark.misses - misses > mark.hits - hits:
            cold.append(number)
        hits, misses = mark.hits, mark.misses
    return (cold[0], cold[-1]) if cold else (len(marks), len(marks))
