"""Which of a script's loaders it trains with. Pure: events bring their time, loaders are numbers in the order of first use.

It is the loader whose batches precede an optimizer's step. If a script makes no such step for a while (it updates by
itself, or not at all), it is a loader whose batches precede a backward pass, or that shuffles; after a longer while, the
largest loader that was used. A loader that is read while gradients are switched off validates.
"""

from dataclasses import dataclass

BACKWARD_BATCHES, SHUFFLED_BATCHES, SHUFFLED_S = 16, 200, 20.0
OTHER_BATCHES, OTHER_S = 300, 30.0
VALIDATING_S = 60.0


@dataclass(slots=True)
class _Followed:
    shuffles: bool
    length: float
    first_at: float = -1.0
    batches: int = 0
    learns: bool = False
    goes_back: bool = False


class Choice:
    """Follows loaders and updates until the choice is clear. Ranks, which must agree, count batches: `by_time=False`."""

    def __init__(self, wanted: int | None = None, *, by_time: bool = True) -> None:
        self.chosen: int | None = None
        self._wanted = wanted
        self._by_time = by_time
        self._loaders: list[_Followed] = []
        self._last: int | None = None

    def __len__(self) -> int:
        return len(self._loaders)

    def used(self, loader: int, *, shuffles: bool, length: float) -> None:
        """A loader is iterated."""
        if loader == len(self._loaders):
            self._loaders.append(_Followed(shuffles, length))
        if self._wanted == loader + 1:
            self.chosen = loader

    def given(self, loader: int, now: float, *, learns: bool) -> None:
        """A loader gave a batch, with gradients switched on (`learns`) or off."""
        self._last, known = loader, self._loaders[loader]
        if known.first_at < 0:
            known.first_at = now
        known.batches += 1
        known.learns = known.learns or learns
        if self._wanted is None and self.chosen is None and self._is_clear(loader, known, now):
            self.chosen = loader

    def updated(self) -> None:
        """An optimizer made a step."""
        if self._wanted is None and self.chosen is None:
            self.chosen = self._last

    def went_back(self) -> None:
        """A backward pass was made."""
        if self._last is not None:
            self._loaders[self._last].goes_back = True

    def learns(self, loader: int) -> bool:
        """Whether a loader was read with gradients switched on."""
        return self._loaders[loader].learns

    def best_guess(self) -> int | None:
        """The chosen loader, or the one that would be chosen if no more events came."""
        if self.chosen is not None or self._wanted is not None or not self._loaders:
            return self.chosen
        return max(range(len(self._loaders)), key=self._likelihood)

    def _likelihood(self, loader: int) -> tuple[bool, bool, bool, float, int]:
        known = self._loaders[loader]
        return known.goes_back, known.learns, known.shuffles, known.length, -loader

    def _is_clear(self, loader: int, known: _Followed, now: float) -> bool:
        passed_s = now - known.first_at if self._by_time else 0.0
        if not known.learns:
            return passed_s >= VALIDATING_S and loader == self.best_guess()
        if known.goes_back or known.shuffles:  # one that shuffles may be gone through for a mean before
            enough = BACKWARD_BATCHES if known.goes_back else SHUFFLED_BATCHES
            return known.batches >= enough or passed_s >= SHUFFLED_S
        return (known.batches >= OTHER_BATCHES or passed_s >= OTHER_S) and loader == self.best_guess()
