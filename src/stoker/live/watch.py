"""Loaders over time: rates from differences of their counters, and a word on what holds one up.

A rate is taken over whole steps of the loop, from the end of one batch to the end of another, so that it is exact however
short the look; only of a loop whose next batch is overdue it is taken over the time of the look, and goes to nothing. Of
a loop too slow for a look it is the average so far.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from stoker.host import process
from stoker.host.process import Process
from stoker.live.doing import doing
from stoker.live.groups import ROOM, GroupView, Key, Waits
from stoker.live.hints import in_group, limit, stall
from stoker.live.record import Seen
from stoker.live.row import LoaderRow

WINDOW = 5
"""Looks that a rate is taken over."""
HISTORY = 60
STALL_S = 2.5
"""A wait of this length has a name."""
IDLE_S = 10.0
"""A loop that asks for nothing for so long, and for ten steps, is remarked on."""
_OVERDUE_STEPS = 3

LookAtGroups = Callable[[Iterable[Seen]], dict[Key, GroupView]]


class LoaderWatch:
    """Looks at all loaders, again and again, and at the groups that they are in."""

    def __init__(
        self, look: Callable[[], dict[str, Seen]], clock: Callable[[], float], look_at_groups: LookAtGroups = lambda _: {}
    ) -> None:
        self._look = look
        self._look_at_groups = look_at_groups
        self._clock = clock
        self._looks: dict[str, deque[tuple[float, Seen]]] = {}
        self._histories: dict[str, deque[float]] = {}
        self._slow: dict[str, deque[Waits | None]] = {}
        self._doing = _Doing()

    def rows(self) -> list[LoaderRow]:
        """Look once more. Returns a row for each living loader, by script, rank and number."""
        found = self._look()
        groups = self._look_at_groups(found.values())
        at = self._clock()
        self._looks = {token: self._looks.get(token, deque(maxlen=WINDOW + 1)) for token in found}
        self._histories = {token: self._histories.get(token, deque(maxlen=HISTORY)) for token in found}
        self._slow = {token: self._slow.get(token, deque(maxlen=WINDOW)) for token in found}
        turns: dict[int, float] = {}
        for seen in found.values():
            turns[seen.facts.pid] = max(turns.get(seen.facts.pid, 0.0), _moved_at(seen))
        rows = {}
        for token, seen in found.items():
            looks, history = self._looks[token], self._histories[token]
            if looks:
                history.append(measure(looks[-1], (at, seen)).samples_per_s)
            row = measure(looks[0] if looks else None, (at, seen), has_turn=_moved_at(seen) >= turns[seen.facts.pid])
            looks.append((at, seen))
            rows[token] = replace(row, history=tuple(history), group=groups.get(seen.facts.key))
        self._doing.look(at)
        busy = _busy(rows.values())
        return sorted((self._explained(token, row, busy) for token, row in rows.items()), key=_order)

    def _explained(self, token: str, row: LoaderRow, busy: dict[Key, float]) -> LoaderRow:
        """A row with a hint on which process is waited for, and what that process is doing."""
        own = row.member
        if own is not None:
            self._slow[token].append(own.waits if own.waits is not None and own.waits.kind == ROOM else None)
            slow = next((waits for waits in reversed(self._slow[token]) if waits is not None), None)
            hint = in_group(replace(row, busy=busy.get(row.seen.facts.key)), own, slow, self._doing)
            return replace(row, hint=hint, is_stalled=row.is_stalled or own.pid in own.stopped)
        if row.is_stalled and row.waiting_s:
            return replace(row, hint=stall(row, self._doing(row.seen.late_pid or row.seen.facts.pid)))
        return row


class _Doing:
    """What processes are busy with, from one look to the next. Only those are looked up that somebody asks about."""

    def __init__(self) -> None:
        self._at = 0.0
        self._before: dict[int, tuple[float, Process | None]] = {}
        self._now: dict[int, tuple[float, Process | None]] = {}

    def look(self, at: float) -> None:
        self._at, self._before, self._now = at, self._now, {}

    def __call__(self, pid: int) -> str:
        if pid not in self._now:
            self._now[pid] = self._at, process.find(pid, closely=True)
        since, before = self._before.get(pid, (self._at, None))
        return doing(before, self._now[pid][1], self._at - since)


def _busy(rows: Iterable[LoaderRow]) -> dict[Key, float]:
    """The share of the time in which the workers of each group have something to do."""
    found: dict[Key, float] = {}
    for row in rows:
        if row.group is not None and row.busy is not None:
            busy = row.busy * max(1, row.seen.workers) / max(1, row.group.workers)
            found[row.seen.facts.key] = min(1.0, found.get(row.seen.facts.key, 0.0) + busy)
    return found


def _order(row: LoaderRow) -> tuple[str, int, int, int]:
    facts = row.seen.facts
    return facts.script, -1 if facts.rank is None else facts.rank, facts.pid, facts.number


def _moved_at(seen: Seen) -> float:
    return max(seen.asked_at, seen.left_at, seen.facts.made_at)


def measure(before: tuple[float, Seen] | None, after: tuple[float, Seen], *, has_turn: bool = True) -> LoaderRow:
    """What happened between two looks at one loader; pure."""
    at, seen = after
    since, old = before or (seen.facts.made_at, _at_first(seen))
    batches, steps_s = seen.batches - old.batches, seen.left_at - max(old.left_at, old.facts.made_at)
    life_s = max(seen.left_at, seen.facts.made_at) - seen.facts.made_at
    step_s = steps_s / batches if batches > 0 else life_s / seen.batches if seen.batches else 0.0
    age_s = max(0.0, at - seen.left_at) if seen.left_at else None
    waiting_s = max(0.0, at - seen.asked_at) if seen.is_waiting else 0.0
    is_overdue = age_s is None or age_s > _OVERDUE_STEPS * step_s
    if is_overdue or seen.is_over or not has_turn:
        span_s = at - since
        waited_s = seen.waited_s(at) - old.waited_s(since)
    else:
        if not batches:
            old, batches, steps_s = _at_first(seen), seen.batches, life_s
        span_s, waited_s = steps_s, seen.wait_s - old.wait_s
    span_s = max(span_s, 1e-9)
    prep_s, fetch_s = seen.prep_s - old.prep_s, seen.fetch_s - old.fetch_s
    looked, hits = seen.hits + seen.misses - old.hits - old.misses, seen.hits - old.hits
    if seen.is_waiting:
        state = "waits"
    elif seen.is_over:
        state = "between epochs"
    else:
        state = "trains" if has_turn else "pauses"
    row = LoaderRow(
        seen=seen,
        samples_per_s=(seen.samples - old.samples) / span_s,
        batches_per_s=batches / span_s,
        waiting=min(1.0, max(0.0, waited_s / span_s)),
        fetch=min(1.0, fetch_s / prep_s) if prep_s > 0 and seen.fetch_s else None,
        hits=hits / looked if looked else None,
        busy=min(1.0, prep_s / span_s / max(1, seen.workers)) if batches else None,
        age_s=age_s,
        waiting_s=waiting_s,
        state=state,
        is_stalled=waiting_s >= max(STALL_S, _OVERDUE_STEPS * step_s),
        hint="",
        remote=_remote(old, seen),
        remote_bytes_per_s=max(0, seen.remote_bytes - old.remote_bytes) / span_s,
    )
    if row.is_stalled:
        return replace(row, hint=stall(row, ""))
    is_idle = state == "trains" and age_s is not None and age_s >= max(IDLE_S, 10 * step_s)
    if is_idle:
        return replace(row, is_stalled=True, hint=f"the loop itself has taken no batch for {age_s:.0f} s: not the loader")
    return replace(row, hint=limit(row))


def _remote(old: Seen, seen: Seen) -> float | None:
    """The share of the samples that other hosts have prepared."""
    if not seen.remote and not seen.remote_workers:
        return None
    samples = seen.samples - old.samples
    return min(1.0, max(0, seen.remote - old.remote) / samples) if samples else 0.0


def _at_first(seen: Seen) -> Seen:
    """The counters of a loader that has done nothing yet."""
    names = "batches", "samples", "hits", "misses", "bytes_cache", "bytes_storage", "remote", "remote_bytes"
    counts: dict[str, Any] = dict.fromkeys(names, 0)
    return replace(seen, **counts, wait_s=0.0, prep_s=0.0, fetch_s=0.0, left_at=0.0, asked_at=0.0)
