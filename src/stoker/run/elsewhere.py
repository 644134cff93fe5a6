"""Measures what workers on other hosts prepare, while the loop is paused. They dial this one, as in `stoker run --offload`.

All that they can make is taken, beside what the own workers make, as fast as it comes. So the loop limits nothing.
"""

import time
from typing import Any

from stoker.decide.offload import Remote
from stoker.feed.parts import candidates
from stoker.host import process
from stoker.remote.parts import PARTS

_PATIENCE_S = 30.0
"""So long workers may take to come."""
_SETTLE = 0.3


def remote_rates(loader: Any, limit_s: float) -> tuple[dict[str, Remote], str]:
    """What remote workers make of a loader's samples, by the part of the preparation that they do; or nothing, and why."""
    with loader:
        source = loader._iterate()
        deadline = time.monotonic() + _PATIENCE_S
        while not loader.stats().remote:
            next(source)
            relaying = loader.here.relaying
            if relaying is None:
                return {}, "nothing can be sent there"
            if time.monotonic() > deadline:
                return {}, f"no batch has come from other hosts: does `stoker worker {loader.offload}` run there?"
        against = candidates(loader)
        found: dict[str, Remote] = {}
        for part in PARTS:
            if part not in against:
                relaying.limit(1.0, part)
                _take(source, _SETTLE * limit_s)
                remote = _remote(loader, source, relaying.pid, limit_s)
                found |= {} if remote is None else {part: remote}
        return found, "" if found else "workers on other hosts have made nothing more"


def _remote(loader: Any, source: Any, relay: int, limit_s: float) -> Remote | None:
    """What remote workers make now; None if that is nothing."""
    before, cpu_here, cpu_there = loader.stats(), _cpu_s(source.pids), _cpu_s([relay]) + time.process_time()
    seconds = _take(source, limit_s)
    after = loader.stats()
    there = after.remote - before.remote
    here = after.samples - before.samples - there
    if not there:
        return None
    own = (_cpu_s(source.pids) - cpu_here) / here if here else 0.0
    cost = (_cpu_s([relay]) + time.process_time() - cpu_there) / there / own if own else 0.0
    return Remote(there / seconds, cost, max(1, after.remote_workers))


def _take(source: Any, seconds: float) -> float:
    """Take batches for a while. Returns how long that was."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        next(source)
    return time.monotonic() - began


def _cpu_s(pids: list[int]) -> float:
    return sum(found.cpu_s for found in map(process.find, pids) if found is not None)
