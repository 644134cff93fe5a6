"""Where a stream goes on. Apart from what does it: a loader of torch's own knows this, too."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where the stream of one worker, or of a loader without workers, goes on."""

    batches: int = 0
    """How many batches of it the training loop has seen in this epoch."""
    since: int = 0
    """How many of these came after the state was asked for."""
    has_ended: bool = False
    is_fresh: bool = False
    """Whether the state is from between two epochs."""
    dataset: Any = None
    iterator: Any = None

    @property
    def is_before_the_end(self) -> bool:
        """Whether the epoch is over, and the state is from before its end."""
        return self.is_fresh and self.since > 0

    @property
    def is_anew(self) -> bool:
        """Whether the state was taken before the first item of the epoch."""
        return self.is_fresh or self.batches == self.since
