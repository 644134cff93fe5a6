"""A pool is a crew with its exchange. The iterator orders work from it and opens the batches that were made."""

from typing import Any, Protocol

from stoker.pool.crew import Crew
from stoker.pool.serving import Result
from stoker.pool.work import Made, Work


class Pool(Protocol):
    """A crew with an exchange."""

    crew: Crew
    helpers: int
    """Workers beside the crew: each may be given a work more."""

    @property
    def draws(self) -> bool:
        """Whether a batch was seen to draw, so that no worker beside the crew can help."""

    def order(self, worker: int, name: int, work: Work) -> None:
        """Send work to a worker, without waiting."""

    def get(self, timeout_s: float) -> tuple[int, Result]:
        """The next result, and the name of its work. Raises `queue.Empty` after a time, and when a worker has ended."""

    def pid_of(self, name: int, worker: int) -> int:
        """The pid of the process that makes a work, which was ordered from a worker."""

    def open(self, made: Made) -> Any:
        """The batch that was made."""

    def drop(self, made: Made) -> None:
        """Free the memory of a batch that nobody will open."""

    def claim_common(self) -> int:
        """Claim a slot for several workers to fill, or return NOT_COMMON."""

    def free_common(self, slot: int) -> None:
        """Free a common slot that nobody will open."""

    def open_common(self, parts: list[Made]) -> Any:
        """The batch that several workers have filled together."""

    def close(self) -> None:
        """End the crew, and give its memory back."""
