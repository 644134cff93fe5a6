"""How much memory the host has, and how much of it this process may touch within the limits of its control groups."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.host.cgroups import groups

_NAMES = (
    ("memory.max", "memory.current", "inactive_file", "active_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
)
"""Of versions 2 and 1: the limit, what is used, and the two kinds of cache in it that the kernel can drop."""


def memory_bytes() -> int:
    """All memory of the host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def headroom_bytes(system: Path = Path("/")) -> int:
    """How much more memory this process may touch: what the host has, within the limit of every cgroup above."""
    lines = (system / "proc/meminfo").read_text().splitlines()
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*available, *_left(system)], default=1 << 62)


def _left(system: Path) -> Iterator[int]:
    """What the limit of each cgroup leaves. Caches that the kernel can drop count as free."""
    for folder in groups("memory", system):
        for limit, used, *caches in _NAMES:
            with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                stat = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
                yield left + sum(int(stat.get(name, 0)) for name in caches)
