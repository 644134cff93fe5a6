"""How far a script's loop is: iterations since it began, whatever loaders the script makes for them."""

from dataclasses import dataclass

from stoker.live.follow import Following, training


@dataclass(frozen=True, slots=True)
class Steps:
    """What a loop had done at one moment."""

    batches: int
    left_at: float
    """When it got the last of them."""
    began_at: float
    """When the loader that it uses now was made."""
    epoch_length: int = 0
    """Batches in an epoch; 0 if that is not known."""


class CountedLoop:
    """The loop of one process. It goes on counting where the script makes its loader anew for each epoch."""

    def __init__(self, pid: int) -> None:
        self._following = Following(lambda facts: facts.pid == pid)

    def look(self) -> Steps | None:
        """How far it is; None before the first batch. A script that only evaluates counts by its busiest loader."""
        records = self._following.look()
        seen = training(records) or max(records, key=lambda one: one.batches, default=None)
        if seen is None or not seen.batches:
            return None
        return Steps(seen.batches, seen.left_at, seen.facts.made_at, seen.epoch_length)

    def close(self) -> None:
        """Look no more."""
        self._following.close()
