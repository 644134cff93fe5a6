"""What do jobs on one host gain when they share their preparation in a group?

J jobs train on the same JPEG pictures, with 2 workers each: by themselves, or in a group. `ratio` is the throughput of all
jobs together in the group against that of as many independent ones (4 jobs cannot gain more than 4, nor 2 more than 2).
`cpu_ratio` is what all workers of the group spent on the processor against the workers of one job alone. `exact` says that
every sample was prepared exactly once per epoch, and that all jobs saw the same batches. `alone` compares a job in a group
of its own with one that has none. The last line is the time from `kill -9` of a member in the middle of a batch to the
moment when the batches that it had claimed are staged by another.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import stoker
from stoker.group.door import home
from stoker.group.life import READY
from stoker.group.rules import Group
from stoker.group.table import Table
from workloads import Jpegs

SAMPLES, BATCH, WORKERS, EPOCHS = 1536, 64, 2, 3


class Counted(Jpegs):
    """Notes every sample that is prepared."""

    def __init__(self, log: str) -> None:
        super().__init__(SAMPLES)
        self.log = log

    def __likeness__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"%d\n" % index)
        os.close(descriptor)
        return super().__getitem__(index)


def job(group: str, log: str) -> None:
    """One job: says when it is ready, trains when told to, and tells what it cost and saw."""
    loader = stoker.DataLoader(
        Counted(log), BATCH, shuffle=True, num_workers=WORKERS, seed=None if group else 0, group=group or None
    )
    for batch in loader if not group else ():  # warm up; in a group that would be an epoch
        del batch
        break
    before = os.times()
    print("ready", flush=True)
    sys.stdin.readline()
    began, seen = time.monotonic(), 0
    for _ in range(EPOCHS):
        for pixels, labels in loader:
            seen = zlib.crc32(pixels.numpy()[:, ::56, ::56].tobytes(), zlib.crc32(labels.numpy(), seen))
    ended = time.monotonic()
    stats = loader.stats().group
    staged = 0 if stats is None else stats.most_bytes
    loader.close()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers_s = children.ru_utime + children.ru_stime - before.children_user - before.children_system
    print(json.dumps({"began": began, "ended": ended, "workers_s": workers_s, "seen": seen, "staged": staged}), flush=True)


def together(jobs: int, *, in_group: bool) -> dict[str, Any]:
    """Several jobs at once: samples per second of all, and what they told."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        group = f"bench-{os.getpid()}-{time.monotonic_ns()}" if in_group else ""
        command = [sys.executable, "-W", "ignore", __file__, "--job", group, str(log)]
        running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(jobs)]
        for one in running:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        log.write_bytes(b"")
        for one in running:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        told = [json.loads(one.communicate()[0]) for one in running]
        counts = Counter(log.read_text().split())
    span_s = max(one["ended"] for one in told) - min(one["began"] for one in told)
    return {
        "rate": jobs * SAMPLES * EPOCHS / span_s,
        "workers_s": sum(one["workers_s"] for one in told),
        "once": set(counts.values()) == {EPOCHS} and len(counts) == SAMPLES,
        "alike": len({one["seen"] for one in told}) == 1,
        "staged": max(one["staged"] for one in told),
    }


def take_over() -> float:
    """Seconds from the death of a member until others have staged what it had claimed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        group = f"bench-{os.getpid()}-{time.monotonic_ns()}"
        command = [sys.executable, "-W", "ignore", __file__, "--job", group, str(log)]
        victim, other = (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        )
        for one in (victim, other):
            assert one.stdin is not None and one.stdout is not None and one.stdout.readline() == "ready\n"
            one.stdin.write("\n")
            one.stdin.flush()
        (path,) = (home() / group).glob("*/table")
        table = Table(path, Group.of)
        claimed: list[tuple[int, int]] = []
        while not claimed:
            with table.look() as group:
                number = next(m.number for m in group.members.values() if m.process[0] == victim.pid)
                claimed = [b.point for b in group.batches.values() if b.member == number and b.state != READY]
        victim.kill()
        began = time.monotonic()
        while True:
            with table.look() as group:
                first = min(member.point for member in group.members.values() if member.process[0] == other.pid)
                if all(point < first or _is_ready(group, point) for point in claimed):
                    break
        took_s = time.monotonic() - began
        victim.wait()
        other.communicate()
        return took_s


def _is_ready(group: Group, point: tuple[int, int]) -> bool:
    return point in group.batches and group.batches[point].state == READY


def main() -> None:
    """Measure."""
    rounds = harness.rounds()
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds + 1):
        for jobs in (1, 2, 4):
            for in_group in (False, True):
                found = together(jobs, in_group=in_group)
                if number:
                    runs.setdefault(f"{jobs} {'group' if in_group else 'apart'}", []).append(found)

    def ratio(name: str, other: str, value: str = "rate") -> float:
        pairs = zip(runs[name], runs[other], strict=True)
        return float(statistics.median(one[value] / base[value] for one, base in pairs))

    for jobs in (2, 4):
        grouped = runs[f"{jobs} group"]
        harness.report(
            f"{jobs} jobs, JPEG, {WORKERS} workers each: in a group against apart",
            ratio=ratio(f"{jobs} group", f"{jobs} apart"),
            group=statistics.median(one["rate"] for one in grouped),
            apart=statistics.median(one["rate"] for one in runs[f"{jobs} apart"]),
            unit="samples/s of all jobs",
            limit=jobs,
            cpu_ratio=ratio(f"{jobs} group", "1 apart", "workers_s"),
            exact=all(one["once"] and one["alike"] for one in grouped),
            staged_mb=max(one["staged"] for one in grouped) / 1e6,
        )
    harness.report("one job, JPEG: in a group of its own against none", ratio=ratio("1 group", "1 apart"))
    times = [take_over() for _ in range(2 * rounds)]
    batch_s = BATCH * statistics.median(WORKERS / one["rate"] for one in runs["1 apart"])
    harness.report(
        "taking over from a killed member, of the larger of a second and two batches",
        ratio=max(1.0, 2 * batch_s) / max(times),
        seconds={"median": statistics.median(times), "worst": max(times), "a batch": batch_s},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        job(*sys.argv[2:])
    else:
        main()
