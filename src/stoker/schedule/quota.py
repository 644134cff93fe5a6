"""A part of the cores for a process and all that it starts: a control group of its own with a quota.

It is made below the group that the process is in. That needs root, or a group that was delegated. Groups of those who
have ended are removed by the next who comes.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.host.cgroups import groups

_PERIOD_US = 10_000
_LONGEST_US = 1_000_000
_LEAST_US = 1_000
_PREFIX = "stoker-lease-"
_TRIES = 20


@contextlib.contextmanager
def limited(name: str, cores: float) -> Iterator[Path | None]:
    """Within this, the process and its children have so many cores at most; None where that cannot be had."""
    folder = _enter(name, cores)
    try:
        yield folder
    finally:
        if folder is not None:
            leave(folder)
            with contextlib.suppress(OSError):
                folder.rmdir()


def leave(folder: Path) -> None:
    """Take this process out of the group, once what it has started is in it: watching is not paid by the watched."""
    with contextlib.suppress(OSError):
        (folder.parent / "cgroup.procs").write_text(str(os.getpid()))


def _enter(name: str, cores: float) -> Path | None:
    for parent in groups("cpu")[:2]:
        for old in parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                old.rmdir()  # which fails while there is a process in it
        for _ in range(_TRIES):
            try:
                return _made(parent / f"{_PREFIX}{name}", cores)
            except FileNotFoundError:
                continue  # another has taken it for one of those that have ended
            except OSError:
                break
    return None


def _made(folder: Path, cores: float) -> Path:
    folder.mkdir(exist_ok=True)
    period = max(_PERIOD_US, min(_LONGEST_US, round(_LEAST_US / cores)))  # longer where the quota would be too small
    quota = max(_LEAST_US, round(cores * period))
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (folder / "cpu.max").write_text(f"{quota} {period}")
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    return folder
