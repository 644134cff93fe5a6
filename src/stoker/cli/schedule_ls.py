"""List the scheduler's jobs: what each has, and how far it is; then what is given of each server.

MB/s is what jobs with a profile read from storage at the speed that it promises; what their memory holds is not read.
"""

import argparse
import json
import shlex
from collections.abc import Sequence

from stoker.cli.schedule_places import add_place, opened
from stoker.schedule.state import UNKNOWN_ITERATIONS, KnownJob, KnownLease, State

_COLUMNS = "job", "status", "GPUs", "CPUs", "GB", "MB/s", "server", "leases", "iterations", "script"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object for each job")


def run(options: argparse.Namespace) -> int:
    """Print the list."""
    state = opened(options)
    jobs = state.jobs()
    rows = [_row(state, known) for known in jobs]
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    table = [_COLUMNS, *(tuple(str("" if row[name] is None else row[name]) for name in _COLUMNS) for row in rows)]
    widths = [max(len(row[number]) for row in table) for number in range(len(_COLUMNS))]
    for line in table:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
    for given in _servers(state, jobs):
        print(given)
    return 0


def _servers(state: State, jobs: Sequence[KnownJob]) -> list[str]:
    """What is given of each server, a line each."""
    matrices = {known.job.id: known.job.matrix for known in jobs}
    given: dict[str, list[float]] = {}
    for one in state.leases():
        if one.status == "given":
            for share in one.lease.placement.shares:
                reads = one.lease.storage_mb_s(matrices[one.lease.job_id], share)
                sums = given.setdefault(share.server, [0.0] * 4)
                for number, value in enumerate((share.gpus, share.cpus, share.memory_gb, reads)):
                    sums[number] += value
    return [
        f"{server}: {gpus:g} GPU{'' if gpus == 1 else 's'}, {cpus:.3g} CPUs and {memory:.3g} GB are given; "
        f"{reads:.3g} MB/s are read from storage"
        for server, (gpus, cpus, memory, reads) in sorted(given.items())
    ]


def _row(state: State, known: KnownJob) -> dict[str, object]:
    job = known.job
    living = state.leases(job.id)
    has = next((one for one in living if one.status == "given"), None)
    demand = has.lease.placement.demand if has else None
    total = "" if job.iterations >= UNKNOWN_ITERATIONS else f"/{job.iterations}"
    return {
        "job": job.id,
        "status": _status(state, known, has),
        "GPUs": job.gpus,
        "CPUs": round(demand.cpus, 2) if demand else None,
        "GB": round(demand.memory_gb, 2) if demand else None,
        "MB/s": round(sum(has.lease.storage_mb_s(job.matrix, share) for share in has.lease.placement.shares), 1)
        if has and job.matrix.reads
        else None,
        "server": " ".join(share.server for share in has.lease.placement.shares) if has else None,
        "leases": len(state.leases(job.id, living=False)),
        "iterations": f"{known.done:.0f}{total}",
        "script": shlex.join(known.words),
        "code": known.code,
        "word": known.word,
    }


def _status(state: State, known: KnownJob, has: KnownLease | None) -> str:
    if known.status not in ("new", "queued"):
        return known.status
    if has is None:
        return "waits"
    return "ends" if has.ending else "runs" if state.marks(has.lease).has("ready") else "starts"
