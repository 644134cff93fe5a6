"""What checkpoints have cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """What checkpoints have cost so far."""

    interval: int
    """Iterations between two of them, as it is now."""
    mode: str
    """Where snapshots are taken: "cpu" or "gpu"."""
    checkpoints: int
    """How many are on disk by our doing, whole and verified when they were written."""
    stall_s: float
    """How long the loop was held up, in all."""
    persist_s: float
    """How long the last one took to write, beside the loop."""
    overhead: float
    """The fraction by which the last interval was slower than it would have been."""
    last_step: int | None
    """The step of the newest one on disk."""
    failures: int
    """How many could not be written."""
