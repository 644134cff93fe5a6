"""How many cores others take while something is measured: other processes, and other guests of the machine.

    watch = Watch()          before
    watch.load()             after: cores that others took, and whether that matters

Counted are the cores that this process may run on, over an interval. Its own work is that of this process and of all its
descendants; a child that has ended counts on in its parent. Taken cores matter where fewer stay idle: what is measured
would have used them. Where the kernel tells nothing, nobody took anything.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_MATTERS = 0.1
"""Less than this part of the cores is what any host has running."""
_IDLE, _IOWAIT, _STEAL, _KNOWN = 3, 4, 7, 8
"""Columns of /proc/stat; guest time, which comes after, is counted in user time already."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the cores did during an interval, in cores."""

    cores: float
    idle: float
    own: float
    others: float
    """Other processes of this host."""
    stolen: float
    """Other guests of the same machine (steal)."""
    seconds: float

    @property
    def taken(self) -> float:
        """Cores that others had."""
        return self.others + self.stolen

    @property
    def matters(self) -> bool:
        """Whether others may have made what was measured meanwhile too slow."""
        return self.taken > _MATTERS * self.cores and self.taken > self.idle

    def words(self) -> str:
        """A sentence for a report."""
        stolen = f", and other guests of the machine {self.stolen:.1f}" if self.stolen >= 0.05 else ""
        return (
            f"other processes kept {self.others:.1f} of {self.cores:g} cores busy meanwhile{stolen}: rates and speeds may "
            "be too low; measure again on a quiet host"
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at a moment, in seconds: of the cores since the host began, of our processes since they did."""

    total: float
    idle: float
    stolen: float
    own: float
    cores: int


def between(before: Sample, after: Sample) -> Load:
    """What happened from one sample to the next."""
    total = after.total - before.total
    cores = after.cores
    if total <= 0:
        return Load(cores, cores, 0.0, 0.0, 0.0, 0.0)
    seconds = total / cores
    idle, stolen, own = (
        max(0.0, getattr(after, name) - getattr(before, name)) / seconds for name in ("idle", "stolen", "own")
    )
    others = max(0.0, cores - idle - stolen - own)
    return Load(cores, idle, own, others, stolen, seconds)


class CoreWatch:
    """Looks at the cores now, and again when asked."""

    def __init__(self, root: int | None = None) -> None:
        self._root = root or os.getpid()
        self._before = sample(self._root)

    def load(self) -> Load:
        """Since the beginning, or since this was asked last."""
        after = sample(self._root)
        load, self._before = between(self._before, after), after
        return load


def sample(root: int, proc: Path = Path("/proc"), cores: frozenset[int] | None = None) -> Sample:
    """The counters of some cores (those that this process may use), and of a process with all its descendants."""
    chosen = frozenset(os.sched_getaffinity(0)) if cores is None else cores
    try:
        times = cpu_times((proc / "stat").read_text(), chosen)
        own = tree_s(root, processes(proc))
    except OSError:
        times, own = {}, 0.0
    counted = len(times) or len(chosen)
    values = list(times.values())
    return Sample(
        total=sum(sum(one) for one in values),
        idle=sum(one[_IDLE] + one[_IOWAIT] for one in values),
        stolen=sum(one[_STEAL] for one in values),
        own=own,
        cores=counted,
    )


def cpu_times(text: str, cores: frozenset[int]) -> dict[int, list[float]]:
    """The columns of some cores in the text of /proc/stat, in seconds."""
    found = {}
    for line in text.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            values = [int(column) / TICKS for column in columns[:_KNOWN]]
            found[int(name[3:])] = values + [0.0] * (_KNOWN - len(values))
    return found


def processes(proc: Path = Path("/proc")) -> dict[int, tuple[int, float]]:
    """The parent of each process, and the processor time of it and of its children that have ended."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            try:
                found[int(folder.name)] = stat_of((folder / "stat").read_text())
            except (OSError, ValueError):
                continue  # it has just ended
    return found


def stat_of(text: str) -> tuple[int, float]:
    """Parent and processor time in the text of /proc/PID/stat; a name in it may have spaces and brackets."""
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15]) / TICKS


def tree_s(root: int, known: Mapping[int, tuple[int, float]]) -> float:
    """The processor time of a process and of all its descendants."""
    return sum(known[pid][1] for pid in [root, *_below(root, known)] if pid in known)


def descendants(root: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    return _below(root, processes())


def _below(root: int, known: Mapping[int, tuple[int, float]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    found, left = [], [root]
    while left:
        some = children.get(left.pop(), [])
        found += some
        left += some
    return found
