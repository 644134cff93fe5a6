"""How much of the preparation other hosts should do, and whether any. Pure (FastFlow's question, with exact forms).

In samples per second of all ranks of a host:

    loop    G   what training takes, if a batch is always ready
    local   L   what this host prepares while it trains
    remote  R   what the remote workers prepare, sent to this host

`cost` is o = O / P: the processor time that a sample of a remote worker takes here (receiving it), in parts of what
preparing it here takes. If a part r of all samples is prepared remotely, T samples per second need T (1 - r) + T r o of
what this host can prepare, and T r of what the others can:

    T(r) = min( G,  L / (1 - r (1 - o)),  R / r )

That rises until the loop or the remote workers are the limit, so the best ratio is the smallest one on the plateau: no
other host works more than it has to. Where o >= 1 nothing is gained at any ratio.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.errors import ConfigError

WORTH = 1.1
"""It is not done for less than this gain."""
MARGIN = 0.05
"""Where the loop is the limit, so much more is sent away than is needed."""
_PART_OF_A_WORKER = 0.1
"""A worker more is not asked for, to gain less than this part of one."""


@dataclass(frozen=True, slots=True)
class Remote:
    """What was measured of one way to divide a sample's preparation between hosts."""

    rate: float
    """Samples per second of all remote workers together."""
    cost: float
    """Processor time of this host for a remote sample, in parts of a local one."""
    workers: int = 1
    """How many remote workers there were."""


@dataclass(frozen=True, slots=True)
class Offload:
    """What to do. With a ratio of 0, nothing; `reason` says why in words for people."""

    part: str | None
    """Which of the ways was chosen."""
    ratio: float
    """The part of all samples that other hosts prepare."""
    rate: float
    """Samples per second that are expected."""
    workers: int
    """Remote workers that are needed for it, as many as it takes to remove the stall."""
    reason: str


def rate_at(ratio: float, loop: float, local: float, remote: Remote) -> float:
    """Samples per second if that part of them is prepared by others."""
    own = 1 - ratio * (1 - remote.cost)
    limits = [loop, local / own if own > 0 else math.inf, remote.rate / ratio if ratio > 0 else math.inf]
    return min(limits)


def best_ratio(loop: float, local: float, remote: Remote, margin: float = MARGIN) -> float:
    """The smallest ratio that is as fast as any, with a margin where the remote workers have it to give."""
    spared = 1 - remote.cost
    if loop <= local or spared <= 0 or remote.rate <= 0:
        return 0.0
    enough = (loop - local) / (loop * spared)
    if enough <= min(1.0, remote.rate / loop):
        return min(enough * (1 + margin), 1.0, remote.rate / loop)
    return min(1.0, remote.rate / (local + remote.rate * spared))


def workers_needed(loop: float, local: float, remote: Remote) -> int:
    """How many workers like those that were measured remove the stall; 0 if none does."""
    spared = 1 - remote.cost
    if loop <= local or spared <= 0 or remote.rate <= 0:
        return 0
    wanted = min((loop - local) / spared, loop)
    return max(1, math.ceil(wanted / (remote.rate / remote.workers) - _PART_OF_A_WORKER))


def decide(loop: float, local: float, remotes: Mapping[str, Remote], worth: float = WORTH) -> Offload:
    """Choose among the ways to divide the preparation. Those that could not be measured are not among them."""
    if loop <= 0 or local <= 0:
        raise ConfigError("the rates of the loop and of this host's workers have to be measured first")
    if loop < worth * local:
        return Offload(
            None, 0.0, min(loop, local), 0, f"this host prepares {local:.0f} samples/s, and the loop takes {loop:.0f}"
        )
    found = [_with(part, loop, local, remote) for part, remote in remotes.items()]
    best = max(found, key=lambda one: (round(one.rate, 6), -one.ratio), default=None)
    if best is None:
        return Offload(None, 0.0, local, 0, "there are no remote workers")
    if best.rate < worth * local:
        why = "costs this host as much as preparing it" if remotes[best.part or ""].cost >= 1 else "would gain too little"
        reason = f"{best.rate:.0f} samples/s instead of {local:.0f}: what other hosts prepare {why}"
        return Offload(None, 0.0, local, best.workers, reason)
    return best


def _with(part: str, loop: float, local: float, remote: Remote) -> Offload:
    ratio = best_ratio(loop, local, remote)
    rate = rate_at(ratio, loop, local, remote)
    limit = "the loop" if rate >= loop * (1 - 1e-9) else "the remote workers"
    reason = f"{rate:.0f} samples/s instead of {local:.0f}; then {limit} would be the limit"
    return Offload(part, ratio, rate, workers_needed(loop, local, remote), reason)
