"""List the scheduler's jobs: what each has, and how far it is."""

import argparse
import json
import shlex

from stoker.cli.schedule_places import add_place, opened
from stoker.schedule.state import UNKNOWN_ITERATIONS, KnownJob, KnownLease, State

_COLUMNS = "job", "status", "GPUs", "CPUs", "GB", "server", "leases", "iterations", "script"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object for each job")


def run(options: argparse.Namespace) -> int:
    """Print the list."""
    state = opened(options)
    rows = [_row(state, known) for known in state.jobs()]
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    table = [_COLUMNS, *(tuple(str("" if row[name] is None else row[name]) for name in _COLUMNS) for row in rows)]
    widths = [max(len(row[number]) for row in table) for number in range(len(_COLUMNS))]
    for line in table:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _row(state: State, known: KnownJob) -> dict[str, object]:
    job = known.job
    living = state.leases(job.id)
    has = next((one for one in living if one.status == "given"), None)
    demand = has.lease.placement.demand if has else None
    total = "" if job.iterations >= UNKNOWN_ITERATIONS else f"/{job.iterations}"
    return {
        "job": job.id,
        "status": _status(known, has),
        "GPUs": job.gpus,
        "CPUs": round(demand.cpus, 2) if demand else None,
        "GB": round(demand.memory_gb, 2) if demand else None,
        "server": " ".join(share.server for share in has.lease.placement.shares) if has else None,
        "leases": len(state.leases(job.id, living=False)),
        "iterations": f"{known.done:.0f}{total}",
        "script": shlex.join(known.words),
        "code": known.code,
        "word": known.word,
    }


def _status(known: KnownJob, has: KnownLease | None) -> str:
    if known.status not in ("new", "queued"):
        return known.status
    if has is None:
        return "waits"
    return "ends" if has.ending else "runs" if has.first_at else "starts"
