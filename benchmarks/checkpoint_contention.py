"""A second writer appears on a disk whose write rate is limited for real, and leaves again: what becomes of the overhead?

Needs root and the blkio controller (cgroup v1). Two runs, one with a fixed interval and one that adapts, go through three
phases: alone, beside a process that writes as fast as it may to the same disk, alone again.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import stoker
from checkpoint_overhead import Training, plain_s

RATE = 60 << 20
_GROUP = Path("/sys/fs/cgroup/blkio") / f"stoker-{os.getpid()}"
_WRITE = """
import os, sys
block = bytes(4 << 20)
while True:
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for _ in range(16):
        os.write(descriptor, block)
        os.fsync(descriptor)
    os.close(descriptor)
"""


@contextlib.contextmanager
def limited_disk(place: str) -> Iterator[None]:
    """This process, and those that it starts, may write so fast together to the disk of a place."""
    device = os.stat(place).st_dev
    _GROUP.mkdir()
    try:
        (_GROUP / "blkio.throttle.write_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {RATE}")
        (_GROUP / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (_GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            with contextlib.suppress(OSError):
                for pid in (_GROUP / "cgroup.procs").read_text().split():
                    (_GROUP.parent / "cgroup.procs").write_text(pid)
                _GROUP.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def second_writer(place: str) -> Iterator[None]:
    """Somebody else who writes all the time."""
    process = subprocess.Popen([sys.executable, "-c", _WRITE, f"{place}/other"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def intervals(training: Training, checkpointer: Any, count: int) -> list[dict[str, float]]:
    """Overhead and length of so many intervals. What an iteration costs alone is measured between them."""
    rows = []
    for _ in range(count):
        before = checkpointer._timetable.last
        began, iterations = time.perf_counter(), 0
        while checkpointer._timetable.last == before:
            training.iterate()
            iterations += 1
            checkpointer.step()
        spent = time.perf_counter() - began
        rows.append({"iterations": iterations, "seconds": spent})
    return rows


def run(adaptive: bool, budget: float, fixed: int | None, count: int) -> tuple[dict[str, Any], int]:
    training = Training(2, 2560, 96)
    iteration_s = statistics.median(plain_s(training, 10) / 10 for _ in range(6))
    phases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=".") as place, limited_disk(place):
        parts: Any = {"model": training.model, "optimizer": training.optimizer}
        with stoker.Checkpointer(place, overhead=budget, every=None if adaptive else fixed, **parts) as checkpointer:
            intervals(training, checkpointer, 8 if adaptive else 2)
            phases["alone"] = intervals(training, checkpointer, count)
            k = checkpointer.stats().interval
            with second_writer(place):
                phases["beside a writer"] = intervals(training, checkpointer, count)
            phases["alone again"] = intervals(training, checkpointer, 2 * count)
    for rows in phases.values():
        for row in rows:
            row["overhead"] = row["seconds"] / (row["iterations"] * iteration_s) - 1
    return phases, k


def summary(phases: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            "overhead": [round(row["overhead"], 3) for row in rows],
            "k": [row["iterations"] for row in rows],
        }
        for name, rows in phases.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="intervals in each phase (default: 5)")
    parser.add_argument("--budget", type=float, default=0.05)
    options = parser.parse_args()
    adaptive, k = run(True, options.budget, None, options.rounds)
    static, _ = run(False, options.budget, k, options.rounds)
    late = [row["overhead"] for row in adaptive["beside a writer"][3:]]
    harness.report(
        f"a second writer on a disk of {RATE >> 20} MiB/s, budget {options.budget:.1%}",
        ratio=(1 + statistics.median(row["overhead"] for row in static["beside a writer"])) / (1 + statistics.median(late)),
        k=k,
        static=summary(static),
        adaptive=summary(adaptive),
    )


if __name__ == "__main__":
    main()
