"""What an iterator goes on from, out of a loader's state. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.errors import ConfigError
from stoker.pool.start import StreamStart


@dataclass(frozen=True, slots=True)
class Resuming:
    """Where the streams and samplers of a loader go on."""

    starts: Sequence[StreamStart] = ()
    """One for each worker, or one where there are none. Empty: where they are."""
    next_worker: int = 0
    pending: Sequence[Any] = ()
    """Indices of batches that were drawn before the last one that was seen, and were not seen."""
    sampler: dict[str, Any] | None = None
    is_fresh: bool = False
    """Whether the state is from between two epochs."""
    replayed: int = 0
    """Batches after these states that are to be prepared again and dropped."""
    generator: Any = None
    """Without workers: what torch's default generator is to be when the epoch has drawn what it drew at its start."""

    def starts_of(self, workers: int) -> Sequence[StreamStart]:
        """Where each worker begins."""
        return self.starts or [StreamStart()] * workers


NOTHING = Resuming()


def checked_interval(steps: Any) -> int | None:
    """The argument `snapshot_every_n_steps`: a number of batches; 0 or None for never."""
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise ConfigError(f"snapshot_every_n_steps must be a number of batches, or 0 or None for never, not {steps!r}")
    return steps


def is_torchdatas(state: Any) -> bool:
    """Whether torchdata's StatefulDataLoader wrote a state."""
    return isinstance(state, dict) and "_iterator_finished" in state and ("_snapshot" in state or "fetcher_state" in state)


def check_form(state: dict[str, Any]) -> None:
    """Refuse a state with a damaged part about states of others: where that is missing, streams would begin anew."""
    try:
        part = state.get("streams", {})
        states, workers = part.get("states"), part.get("workers")
        is_whole = states is None or (
            len(states) == max(workers, 1)
            and part["next_worker"] >= 0
            and all(min(one["batches"], one["since"]) >= 0 and "ended" in one for one in states)
        )
    except (AttributeError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise ConfigError("the loader's state is damaged: it does not tell where each worker's stream was")


def check_workers(part: dict[str, Any] | None, workers: int, *, is_fresh: bool = False) -> None:
    """Refuse states of workers that there are not: what each has read of a stream, no other can know."""
    if part is None or "states" not in part or part["workers"] == workers:
        return
    theirs = part["workers"]
    later = "" if is_fresh else ", and change the number when the epoch is over"
    raise ConfigError(
        f"the state was saved with num_workers={theirs}, and this loader has num_workers={workers}: each worker's stream "
        f"goes on from a state of its own. Make the loader with num_workers={theirs}{later}; or begin the epoch anew, "
        "without this state"
    )


def resuming_of(part: dict[str, Any] | None, workers: int, generator: Any, *, is_fresh: bool) -> Resuming:
    """Read the part of a loader's state that is about states of others."""
    if part is None:
        return Resuming(generator=generator)
    check_workers(part, workers, is_fresh=is_fresh)
    starts = [
        StreamStart(s["batches"], s["since"], s["ended"], is_fresh, s.get("dataset"), s.get("iterator"))
        for s in part.get("states", ())
    ]
    return Resuming(
        starts,
        part.get("next_worker", 0),
        part.get("pending", ()),
        part.get("sampler"),
        is_fresh,
        part.get("replayed", 0),
        generator,
    )
