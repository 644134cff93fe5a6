"""Loaders as somebody who looks might see them."""

import os
from dataclasses import replace
from typing import Any

from stoker.live.groups import GroupView, MemberView, Waits
from stoker.live.record import Facts, Seen
from stoker.live.row import LoaderRow
from stoker.live.watch import LoaderWatch, measure

FACTS = Facts(os.getpid(), 0, 1, 3, 0, 100.0, "processes", "train.py", "Pictures")


def seen_at(left_at: float, batches: int, **changes: Any) -> Seen:
    base = Seen(
        FACTS, batches, 8 * batches, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 2, 0, batches, left_at, False, left_at - 0.1, 0, 0
    )
    return replace(base, **changes)


def row_of(**changes: Any) -> LoaderRow:
    seen = seen_at(200.0, 10, facts=replace(FACTS, **changes))
    return measure(None, (200.1, seen))


def group_row(*others: MemberView, name: str = "search-7", **own: Any) -> LoaderRow:
    """A loader that has waited for `waiting_s`, and is the first of its group."""
    waiting_s, changes = own.pop("waiting_s", 0.0), own.pop("seen", {})
    base = MemberView(0, os.getpid(), "train.py", (7,), 1, 9, 0, True, False, (), None)
    group = GroupView(name, "ab12", (replace(base, **own), *others), 1234, 5, 6, 0, 1_500_000, 0, 2_000_000_000, 0)
    facts = replace(FACTS, group=name, stream="ab12", member=0)
    asked_at = 300.0 - waiting_s if waiting_s else 199.0
    seen = seen_at(299.9 - waiting_s, 1000, facts=facts, asked_at=asked_at, **changes)
    return LoaderWatch(lambda: {"a": seen}, lambda: 300.0, lambda _: {facts.key: group}).rows()[0]


LATE = MemberView(1, 1 << 22, "late\x1b.py", (8,), 1, 2, 7, True, False, (), None)
FOR_ROOM, FOR_BATCH = Waits("room", 1, 1 << 22), Waits("prepared", 1, 8)
