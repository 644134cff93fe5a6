"""How long processes have kept a core busy."""

import contextlib
import resource
from pathlib import Path

from stoker.host import process


def own_cpu_s() -> float:
    """Processor time of this process, all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def wanted_s(pids: list[int]) -> float:
    """How long other processes kept a core busy or were ready to, and had to wait for one."""
    return cpu_s(pids) + sum(_queued_s(pid) for pid in pids)


def _queued_s(pid: int) -> float:
    """How long the threads of a process were ready to run and did not; 0 where the kernel does not count it."""
    total = 0.0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):
            total += int(path.read_text().split()[1]) * 1e-9
    return total


def cpu_s(pids: list[int]) -> float:
    """Processor time of other processes. A process that is gone counts nothing."""
    return sum(found.cpu_s for pid in pids if (found := process.find(pid)) is not None)
