"""What is kept of jobs that were measured side by side, and what stands for what was not. Pure.

All jobs read the same data from the same storage, so a job that waits for storage goes at the pace of storage, whichever
it is. That pace is taken from all that was seen of it: a short look at one job is wrong by several per cent, and a
plan would let the job lead that had more luck.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.live.record import Seen
from stoker.run.together.catalogue import Beside, Solo
from stoker.run.together.stretches import Stretch

_WAITS = 0.05
"""Of a period: one that waits less for storage is not held up by it."""
_ALIKE = 1.1
"""Periods that differ by less are one pace, and chance."""


@dataclass(frozen=True, slots=True)
class Leader:
    """What was seen of the job that reads first. What is None was not seen."""

    cold: Stretch | None
    cached: Stretch | None
    alone: Stretch
    """While all others waited."""
    beside: Stretch | None
    both: Stretch | None


@dataclass(frozen=True, slots=True)
class Follower:
    """What was seen of a job that reads after it."""

    cached: Stretch
    both: Stretch | None


def leader_solo(seen: Seen, startup_s: float, its: Leader, follower: Follower, known: Solo | None) -> Solo:
    """The values of the job that reads first. From the cache it waits as the other does, if that was not seen."""
    compute_s = max(1e-6, its.alone.compute_s)
    if its.cached is not None:
        cached_s = its.cached.wait_s
    elif follower.cached.wait_s > _WAITS * follower.cached.period_s:  # preparing is the limit, for both alike
        cached_s = max(0.0, follower.cached.period_s - compute_s)
    else:
        cached_s = follower.cached.wait_s
    cold_s, count = cached_s, 0
    if its.cold is not None:
        cold_s, count = its.cold.period_s - compute_s, its.cold.iterations
    elif known is not None:
        cold_s, count = known.wait_cold_s, known.cold_iterations
    return _solo(seen, startup_s, compute_s, max(cold_s, cached_s), cached_s, count)


def follower_solo(seen: Seen, startup_s: float, its: Follower, leader: Solo) -> Solo:
    """The values of a job that reads after another: storage gives to it what it gives to that one."""
    batch = _batch(seen)
    cold_s = (leader.compute_s + leader.wait_cold_s) * batch / leader.batch - its.cached.compute_s
    wait_s = its.cached.wait_s
    if not leader.cold_iterations:
        cold_s = wait_s
    return _solo(seen, startup_s, max(1e-6, its.cached.compute_s), max(cold_s, wait_s), wait_s, 0)


def pair(leader: Solo, follower: Solo, first: Leader, second: Follower) -> tuple[Beside, Beside]:
    """The values of both beside each other. Both from storage: None, unless that is another pace than one of them alone."""
    compute_s = None if first.beside is None else max(leader.compute_s, first.beside.compute_s)
    return (
        Beside(_apart(first.both, leader), None, compute_s),
        Beside(_apart(second.both, follower), second.cached.wait_s, follower.compute_s),
    )


def _apart(both: Stretch | None, solo: Solo) -> float | None:
    cold_s = solo.compute_s + solo.wait_cold_s
    if both is None or max(both.period_s, cold_s) <= _ALIKE * min(both.period_s, cold_s):
        return None
    return max(0.0, both.period_s - solo.compute_s)


def with_one_storage(solo: Sequence[Solo]) -> list[Solo]:
    """The values with one pace of storage for all who wait for it, if they can be chance's work."""
    passes = {
        number: one.iterations * (one.compute_s + one.wait_cold_s)
        for number, one in enumerate(solo)
        if one.wait_cold_s - one.wait_cached_s > _WAITS * (one.compute_s + one.wait_cold_s)
    }
    weights = {number: solo[number].cold_iterations * solo[number].batch for number in passes}
    measured = [passes[number] for number, weight in weights.items() if weight]
    if not measured or max(measured) > _ALIKE * min(measured):
        return list(solo)
    pass_s = sum(passes[number] * weight for number, weight in weights.items()) / sum(weights.values())
    return [
        replace(one, wait_cold_s=max(one.wait_cached_s, pass_s / one.iterations - one.compute_s))
        if number in passes
        else one
        for number, one in enumerate(solo)
    ]


def _batch(seen: Seen) -> int:
    return max(1, round(seen.samples / seen.batches))


def _solo(seen: Seen, startup_s: float, compute_s: float, cold_s: float, cached_s: float, count: int) -> Solo:
    return Solo(
        compute_s=compute_s,
        wait_cold_s=cold_s,
        wait_cached_s=cached_s,
        startup_s=startup_s,
        batch=_batch(seen),
        samples=_batch(seen) * seen.epoch_length,
        iterations=seen.epoch_length,
        sample_bytes=(seen.bytes_storage + seen.bytes_cache) / max(1, seen.hits + seen.misses),
        data=seen.facts.cache,
        cold_iterations=count,
    )
