"""Whether a control group leaves its processes no processor time to spare: the kernel stops them in most periods."""

from collections.abc import Sequence
from pathlib import Path

from stoker.host.cgroups import groups

_LOOK_S = 1.0
_MOST = 0.75
"""Of the periods of a second. Processes that work in bursts, with time to spare, are stopped in about half of them."""


class Throttling:
    """The groups of this process, looked at again and again."""

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        self._folders = groups("cpu") if folders is None else tuple(folders)
        self._before = self._counts()
        self._looked_at = float("-inf")
        self._is_starved = False

    def is_starved(self, at: float) -> bool:
        """Whether it was so in the last second or two."""
        if at - self._looked_at >= _LOOK_S:
            self._looked_at = at
            counts = self._counts()
            new = [
                (periods - old_periods, throttled - old_throttled)
                for (periods, throttled), (old_periods, old_throttled) in zip(counts, self._before, strict=True)
            ]
            self._before = counts
            self._is_starved = any(periods > 0 and throttled >= _MOST * periods for periods, throttled in new)
        return self._is_starved

    def _counts(self) -> list[tuple[int, int]]:
        return [_count(folder / "cpu.stat") for folder in self._folders]


def _count(path: Path) -> tuple[int, int]:
    """Periods so far, and those in which processes were stopped."""
    try:
        words = dict(line.split() for line in path.read_text().splitlines())
        return int(words.get("nr_periods", 0)), int(words.get("nr_throttled", 0))
    except (OSError, ValueError):
        return 0, 0
