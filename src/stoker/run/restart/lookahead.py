"""How many of the batches that a loader gave have been used by updates. Pure: counts in, a number or a reason out.

Some loops ask for the next batch before the update of the one before (Accelerate's loader, prefetchers). After update n of
an epoch such a loader has given `a*n + L` batches: `a` for each update, and `L` ahead. A checkpoint is of the moment after
an update, so its position is that of the batches that updates have used: those given, less `L`.

Counting updates alone cannot tell `L` where the first group of an accumulation is shorter (`step % 4 == 0`). Backward
passes can: there are `c` of them for each batch that was used. They are counted too, and preferred where they are regular.
A script that drops a batch now and then shifts the count. Then there is no position until the next epoch begins.
"""

from collections import deque

WINDOW = 20
"""So many updates must agree."""
_FIRST = 3
"""So many are enough while there have been no others."""

TOO_FEW = "there were too few updates"
IRREGULAR = "batches are not used regularly: updates take now more and now fewer of them"
SHORT_FIRST_GROUP = (
    "the first update of an epoch takes fewer batches than the others, and nobody can tell what was read ahead"
)


class Lookahead:
    """Counts for one loader, over all its epochs."""

    def __init__(self) -> None:
        self._given = 0
        """Batches in this epoch, since it began or went on, at its last update or its end."""
        self._carried = 0
        """Batches of the epoch before that no update had used when this one began."""
        self._backwards = 0
        """Backward passes before this epoch."""
        self._first: tuple[int, int] | None = None
        """Batches given and backward passes of this epoch, at its first update."""
        self._last: tuple[int, int] = (0, 0)
        self._updates = 0
        self._ended = False
        self._verdict: tuple[int | None, str] = (None, TOO_FEW)
        self._recent: deque[tuple[int, int, int, int]] = deque(maxlen=WINDOW)
        """Of the last updates: batches and backward passes since the one before, and the whole count in their epoch."""

    def begin(self, backwards: int) -> None:
        """An epoch begins, when so many backward passes have been made in all."""
        if not self._ended:
            self._carried = 0  # the loop was left, with all that was held
        elif self._verdict[0] is not None:
            self._carried = self._unused(backwards)  # else as it was between the epochs before
        self._backwards = backwards
        self._given = self._updates = 0
        self._first, self._last, self._ended = None, (0, 0), False
        self._verdict = self._judge()

    def end(self, given: int) -> None:
        """The loader has no more batches in this epoch than those given."""
        self._given, self._ended = given, True

    def updated(self, given: int, backwards: int) -> None:
        """An update was made, after so many batches of this epoch, and so many backward passes in all."""
        if self._ended:
            return
        self._given = given
        now = given, backwards - self._backwards
        self._updates += 1
        goes_on = False
        if self._first is None:
            self._first = now
        else:
            since = now[0] - self._last[0], now[1] - self._last[1]
            goes_on = bool(self._recent) and self._recent[-1][:2] == since
            self._recent.append((*since, *now))
        self._last = now
        if not goes_on or self._verdict[0] is None:  # else it is as the one before
            self._verdict = self._judge()

    @property
    def ahead(self) -> int | None:
        """How many batches no update had used yet at the last update; None if that cannot be told."""
        if self._given == 0:
            return 0 if self._carried == 0 else None
        return self._verdict[0]

    @property
    def why(self) -> str:
        """Why `ahead` is not known."""
        return self._verdict[1]

    def _judge(self) -> tuple[int | None, str]:
        if self._first is None or len(self._recent) < _FIRST - 1:
            return None, TOO_FEW
        per_batch = self._backwards_per_batch()
        if per_batch is not None:
            marks = {given * per_batch - passes for _, _, given, passes in self._in_this_epoch()}
            marks.add(self._first[0] * per_batch - self._first[1])
            ahead, rest = divmod(min(marks), per_batch)
            ahead += self._carried
            return (ahead, "") if len(marks) == 1 and rest == 0 and ahead >= 0 else (None, IRREGULAR)
        for_each = {batches for batches, *_ in self._recent}
        if len(for_each) > 1 or self._last[0] != self._first[0] + min(for_each) * (self._updates - 1):
            return None, IRREGULAR
        ahead = self._first[0] - min(for_each)
        return (ahead, "") if ahead >= 0 else (None, SHORT_FIRST_GROUP)

    def _in_this_epoch(self) -> list[tuple[int, int, int, int]]:
        return list(self._recent)[max(0, len(self._recent) - self._updates + 1) :] if self._updates > 1 else []

    def _backwards_per_batch(self) -> int | None:
        """How many backward passes there are for a batch, if there is always the same number."""
        ratios = {divmod(passes, batches) if batches else (0, 1) for batches, passes, *_ in self._recent}
        if len(ratios) != 1:
            return None
        times, rest = ratios.pop()
        return times if times and not rest else None

    def _unused(self, backwards: int) -> int:
        """How many batches of an epoch that is over are still held."""
        per_batch = self._backwards_per_batch()
        if per_batch is None:
            return 0
        return max(0, self._given + self._carried - (backwards - self._backwards) // per_batch)
