"""Loaders over time: rates from differences of their counters, and a word on what holds one up.

A rate is taken over whole steps of the loop, from the end of one batch to the end of another, so that it is exact however
short the look; only of a loop whose next batch is overdue it is taken over the time of the look, and goes to nothing. Of
a loop too slow for a look it is the average so far.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stoker.live import process
from stoker.live.process import Process
from stoker.live.record import Seen

WINDOW = 5
"""Looks that a rate is taken over."""
HISTORY = 60
STALL_S = 2.5
"""A wait of this length has a name."""
IDLE_S = 10.0
"""A loop that asks for nothing for so long, and for ten steps, is remarked on."""
_OVERDUE_STEPS = 3
_BOUND = 0.1
_BUSY = 0.9


@dataclass(frozen=True, slots=True)
class Row:
    """A loader as people want to see it. Shares are from 0 to 1; None is unknown."""

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


class Watch:
    """Looks at all loaders, again and again."""

    def __init__(self, look: Callable[[], dict[str, Seen]], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._looks: dict[str, deque[tuple[float, Seen]]] = {}
        self._histories: dict[str, deque[float]] = {}
        self._late: dict[int, tuple[float, Process | None]] = {}

    def rows(self) -> list[Row]:
        """Look once more: all that live, by script, rank and number."""
        found = self._look()
        at = self._clock()
        self._looks = {token: self._looks.get(token, deque(maxlen=WINDOW + 1)) for token in found}
        self._histories = {token: self._histories.get(token, deque(maxlen=HISTORY)) for token in found}
        turns: dict[int, float] = {}
        for seen in found.values():
            turns[seen.facts.pid] = max(turns.get(seen.facts.pid, 0.0), _moved_at(seen))
        late, rows = {}, []
        for token, seen in found.items():
            looks, history = self._looks[token], self._histories[token]
            if looks:
                history.append(measure(looks[-1], (at, seen)).samples_per_s)
            row = measure(looks[0] if looks else None, (at, seen), has_turn=_moved_at(seen) >= turns[seen.facts.pid])
            looks.append((at, seen))
            if row.is_stalled and row.waiting_s:
                pid = seen.late_pid or seen.facts.pid
                before = self._late.get(pid)
                late[pid] = at, process.find(pid, closely=True)
                words = process.doing(before and before[1], late[pid][1], at - before[0] if before else 0.0)
                row = replace(row, hint=_stall(row, words))
            rows.append(replace(row, history=tuple(history)))
        self._late = late
        return sorted(rows, key=_order)


def _order(row: Row) -> tuple[str, int, int, int]:
    facts = row.seen.facts
    return facts.script, -1 if facts.rank is None else facts.rank, facts.pid, facts.number


def _moved_at(seen: Seen) -> float:
    return max(seen.asked_at, seen.left_at, seen.facts.made_at)


def measure(before: tuple[float, Seen] | None, after: tuple[float, Seen], *, has_turn: bool = True) -> Row:
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
    row = Row(
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
    )
    if row.is_stalled:
        return replace(row, hint=_stall(row, ""))
    is_idle = state == "trains" and age_s is not None and age_s >= max(IDLE_S, 10 * step_s)
    if is_idle:
        return replace(row, is_stalled=True, hint=f"the loop itself has taken no batch for {age_s:.0f} s: not the loader")
    return replace(row, hint=_limit(row))


def _at_first(seen: Seen) -> Seen:
    """As it was when it had done nothing."""
    counts: dict[str, Any] = dict.fromkeys(("batches", "samples", "hits", "misses", "bytes_cache", "bytes_storage"), 0)
    return replace(seen, **counts, wait_s=0.0, prep_s=0.0, fetch_s=0.0, left_at=0.0, asked_at=0.0)


def _stall(row: Row, words: str) -> str:
    """Who is waited for."""
    seen = row.seen
    if not seen.workers:
        who = f"its own process {seen.facts.pid}, which prepares the batches itself"
    elif seen.facts.kind == "threads":
        who = f"a worker thread of process {seen.facts.pid}"
    elif seen.late_pid:
        who = f"worker pid {seen.late_pid}"
    else:
        who = f"one of {seen.workers} workers"
        words = ""
    pid = seen.late_pid or seen.facts.pid
    doing = f" ({words}; `py-spy dump --pid {pid}` shows where)" if words else ""
    return f"waiting {row.waiting_s:.0f} s for {who}{doing}"


def _limit(row: Row) -> str:
    """What holds a loop up that waits for a good part of its time."""
    seen = row.seen
    words = []
    if row.waiting >= _BOUND and row.state in ("waits", "trains") and row.batches_per_s:
        if row.fetch is not None and row.fetch > 0.5:
            words.append("fetch-bound: " + ("no cache" if row.hits is None else f"hits {_percent(row.hits)}"))
        elif not seen.workers:
            words.append("prep-bound: the loop prepares its batches itself (num_workers=0)")
        elif row.busy is not None and row.busy >= _BUSY:
            words.append(f"prep-bound: workers are busy {_percent(row.busy)} of the time")
        elif row.busy is not None:
            words.append(f"waits with workers {_percent(row.busy)} busy: single slow batches, or too many small ones")
    if seen.faults:
        words.append(f"the cache failed {seen.faults} times, and storage was read instead")
    return "; ".join(words)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
