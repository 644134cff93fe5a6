"""How many cores this process may use: those it is bound to, within the smallest quota of all control groups above it.

A `cpuset` needs no look: the kernel binds the process to its cores.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.host.cgroups import groups


def usable_cores(system: Path = Path("/")) -> float:
    """The number of cores that this process may use. It need not be whole."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(system)])


def _quotas(system: Path) -> Iterator[float]:
    for folder in groups("cpu", system):
        with contextlib.suppress(OSError, ValueError):  # ValueError: there is no quota, which is called "max"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            yield quota / period
        with contextlib.suppress(OSError):
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # or else there is none
                yield quota / period
