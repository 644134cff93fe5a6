"""A clock for tests."""


class FakeClock:
    """Time that passes only when told to, or while somebody sleeps."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Seconds since some moment."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass, as a sleeper sees it."""
        self.advance(seconds)
