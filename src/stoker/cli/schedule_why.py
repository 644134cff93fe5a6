"""Say why a job has what it has, or waits, and what would change it."""

import argparse
import fcntl
import os
import time
from pathlib import Path

from stoker.cli.schedule_places import add_place, opened
from stoker.host.locks import close_lock, open_lock, take
from stoker.schedule.state import KnownJob, State


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_place(parser)
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("--history", action="store_true", help="what has happened to it, too")


def run(options: argparse.Namespace) -> int:
    """Print the sentence."""
    state = opened(options)
    known = state.job(options.job)
    print(_sentence(state, known, _has_daemon(Path(options.state))))
    if options.history:
        for at, lease, word in state.events(options.job):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
            print(f"  {when}  {f'lease {lease} ' if lease else ''}{word}")
    return 0


def _sentence(state: State, known: KnownJob, has_daemon: bool) -> str:
    if known.status == "done":
        return f"It is done, after {_leases(state, known)}."
    if known.status == "cancelled":
        return "It was cancelled."
    if known.status == "failed":
        code = f" with code {known.code}" if known.code is not None else ""
        return f"It failed{code}: {known.word}."
    if known.wants_cancel and has_daemon:
        return "It was cancelled, and is being ended."
    if known.wants_cancel:
        return (
            "It was cancelled, and is ended as soon as a daemon looks at it: `stoker schedule run` with the same --state."
        )
    if not has_daemon:
        return ("No daemon looks at it now: `stoker schedule run` with the same --state goes on. " + known.why).rstrip()
    ending = next((one for one in state.leases(known.job.id) if one.ending and one.status == "given"), None)
    if ending is not None:
        where = " and ".join(share.server for share in ending.lease.placement.shares)
        return (
            f"Its lease on {where} is being ended: {ending.ending}. It goes on with another one as soon as nothing of "
            "it lives there any more."
        )
    return known.why or "It waits for the daemon, which has not seen it yet."


def _leases(state: State, known: KnownJob) -> str:
    count = len(state.leases(known.job.id, living=False))
    return f"{count} lease{'' if count == 1 else 's'}"


def _has_daemon(folder: Path) -> bool:
    try:
        lock = open_lock(folder / "daemon.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not take(lock, fcntl.LOCK_SH)  # a daemon that starts just now waits for the end of this look
    finally:
        close_lock(lock)
