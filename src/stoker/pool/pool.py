"""A pool: a crew with its exchange, as the iterator sees them that orders work and opens what was made."""

from typing import Any, Protocol

from stoker.pool.crew import Crew
from stoker.pool.serving import Result
from stoker.pool.work import Made, Work


class Pool(Protocol):
    """A crew with an exchange."""

    crew: Crew

    def order(self, worker: int, name: int, work: Work) -> None:
        """Have a worker do something. Does not wait."""

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. `queue.Empty` after a time, and when a worker has ended."""

    def open(self, made: Made) -> Any:
        """The batch that was made."""

    def claim_common(self) -> int:
        """A slot for several workers to fill, or NOT_COMMON."""

    def free_common(self, slot: int) -> None:
        """Nobody will open it."""

    def open_common(self, parts: list[Made]) -> Any:
        """The batch that several workers have filled together."""

    def close(self) -> None:
        """End the crew, and give its memory back."""
