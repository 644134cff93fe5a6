"""A loader as people want to see it."""

from dataclasses import dataclass

from stoker.live.groups import GroupView, MemberView
from stoker.live.record import Seen


@dataclass(frozen=True, slots=True)
class LoaderRow:
    """What `stoker top` shows of a loader. Shares are from 0 to 1; None is unknown."""

    seen: Seen
    samples_per_s: float
    batches_per_s: float
    waiting: float
    """Share of the loop's time that it waits inside the loader."""
    fetch: float | None
    """Share of the workers' time that goes into reading; the rest is preparing."""
    hits: float | None
    """Share of reads that come from the cache."""
    busy: float | None
    """Share of the time in which workers have something to do."""
    age_s: float | None
    """Seconds since the last batch."""
    waiting_s: float
    """Seconds that the loop has been waiting right now."""
    state: str
    """"waits", "trains", "between epochs", or "pauses" when another loader of its process has the turn."""
    is_stalled: bool
    hint: str
    history: tuple[float, ...] = ()
    """Samples per second, look by look."""
    group: GroupView | None = None
    """The group that it is in, if that could be looked at."""
    remote: float | None = None
    """Share of the samples that other hosts have prepared; None if none may."""
    remote_bytes_per_s: float = 0.0

    @property
    def member(self) -> MemberView | None:
        """This loader as a member of its group."""
        return None if self.group is None else self.group.member(self.seen.facts.member)
