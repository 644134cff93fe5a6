"""Show what the loaders of this user on this host are doing, live.

q or Ctrl-C ends it. FOR is what the loop does, train or eval (gradients are off). WAITING is the share of its time that a
training loop waits for data; FETCH/PREP is how the time of the workers is divided between reading and preparing; WORKERS
are processes (p) or threads (t); LAST is how long ago the loop got a batch. REMOTE is the share that other hosts prepare,
how many workers they have, and what they send. The groups that loaders are in stand below them: STAGING is the memory
that holds batches, and how much it may be. Last come the queues that this host's readers serve, for loaders with a cache.
In a pipe the table is printed once. Loaders with STOKER_TOP=0 in their environment are not seen.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from stoker.errors import CommandError
from stoker.keeper.view import KeeperView, keepers
from stoker.live import folder
from stoker.live.groups import GroupView, Key
from stoker.live.record import Seen
from stoker.live.row import LoaderRow
from stoker.live.watch import LoaderWatch
from stoker.report.readers import queue_lines
from stoker.report.top import Style, clip, table

_EVERY_S = 1.0
_LOOK_S = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--once", action="store_true", help="print the table once, from half a second of looking")
    parser.add_argument("--json", action="store_true", help="print JSON, likewise once")


def run(options: argparse.Namespace) -> int:
    """Show the table."""
    watch = LoaderWatch(_look, time.monotonic, look_at_groups)
    is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if options.json or options.once or not is_live:
        rows = watch.rows()
        if rows:
            time.sleep(_LOOK_S)
            rows = watch.rows()
        if options.json:
            reading = keepers()
            print(json.dumps([{**document(row), "reading": _reading(row, reading)} for row in rows], indent=2))
        else:
            width = shutil.get_terminal_size((120, 24)).columns
            print("\n".join([*table(rows, _style(width, None)), *queue_lines(keepers(), width, time.monotonic())]))
        return 0
    try:
        _live(watch)
    except OSError as error:
        raise CommandError(f"the terminal is gone: {error}") from error
    return 0


def _live(watch: LoaderWatch) -> None:
    from stoker.report.screen import Screen

    with Screen() as screen:
        for _ in screen.frames(_EVERY_S, time.monotonic):
            width, height = screen.size()
            rows = watch.rows()
            count = sum(row.is_stalled for row in rows)
            loaders = f"{len(rows)} loader{'' if len(rows) == 1 else 's'}" + (f", {count} stalled" if count else "")
            groups = len({row.seen.facts.key for row in rows if row.group is not None})
            loaders += f", {groups} group{'' if groups == 1 else 's'}" if groups else ""
            title = f"stoker top   {time.strftime('%H:%M:%S')}   {loaders}   (q to leave)"
            queues = queue_lines(keepers(), width, time.monotonic())[: height // 3]
            screen.draw([clip(title, width), "", *table(rows, _style(width, height - 2 - len(queues))), *queues])


def _look() -> dict[str, Any]:
    try:
        return dict(folder.loaders())
    except OSError as error:
        raise CommandError(f"cannot look at what loaders have published: {error}") from error


def look_at_groups(loaders: Iterable[Seen]) -> dict[Key, GroupView]:
    """The groups that loaders are in."""
    if not any(one.facts.group for one in loaders):
        return {}
    from stoker.group.glance import groups_of

    return groups_of(loaders)


def _style(width: int, height: int | None) -> Style:
    return Style(width, height, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def document(row: LoaderRow) -> dict[str, Any]:
    """A row in JSON's terms."""
    seen, facts = asdict(row.seen), asdict(row.seen.facts)
    return {
        **{name: facts[name] for name in ("pid", "rank", "script", "dataset", "kind")},
        "loader": facts["number"],
        **{name: value for name, value in seen.items() if name not in ("facts", "left_at", "asked_at", "is_over")},
        "late_pid": row.seen.late_pid or None,
        "epoch": row.seen.epoch if row.seen.epoch >= 0 else None,
        "epoch_length": row.seen.epoch_length or None,
        "samples_per_s": row.samples_per_s,
        "batches_per_s": row.batches_per_s,
        "waiting_share": row.waiting,
        "fetch_share": row.fetch,
        "hits_share": row.hits,
        "busy_share": row.busy,
        "remote_share": row.remote,
        "remote_bytes_per_s": row.remote_bytes_per_s,
        "age_s": row.age_s,
        "waiting_s": row.waiting_s,
        "state": row.state,
        "is_stalled": row.is_stalled,
        "hint": row.hint,
        "group": _group(row),
    }


def _reading(row: LoaderRow, found: list[KeeperView]) -> list[dict[str, Any]]:
    """What is read ahead for the loaders of a row's process."""
    return [asdict(queue) for keeper in found for queue in keeper.queues if queue.pid == row.seen.facts.pid]


def _group(row: LoaderRow) -> dict[str, Any] | None:
    """The group of a loader, in JSON's terms; of one that cannot be looked at, the name."""
    facts, group = row.seen.facts, row.group
    if not facts.group:
        return None
    named = {"name": facts.group, "stream": facts.stream, "member": facts.member}
    if group is None:
        return {**named, "members": None}
    own, last = row.member, group.last
    return {
        **named,
        **{name: value for name, value in asdict(group).items() if name not in named},
        "workers": group.workers,
        "last": None
        if last is None
        else {"member": last.number, "pid": last.pid, "script": last.script, "behind": last.behind},
        "behind": None if own is None else own.behind,
        "waits_for": None if own is None or own.waits is None or not row.waiting_s else asdict(own.waits),
    }
