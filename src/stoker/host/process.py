"""Which processes live: what the kernel says of them.

A process is identified by its pid and its start time, because the kernel uses pids again. A zombie is dead. A pid has a
meaning in its own namespace only, and a time since boot only until the next boot. No timeout decides which are dead.
"""

import os
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DEAD, _STOPPED = "ZXx", "Tt"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it is at one moment."""

    state: str
    """The kernel's letter: R runs, S sleeps, D waits for a device, T is stopped, Z is a zombie."""
    started: int
    """When it was started, in ticks since boot."""
    cpu_s: float
    """Seconds on a core so far, of all its threads."""
    read_bytes: int
    """Bytes that it has read so far, from anything; 0 where that may not be known."""
    sleeps_in: str
    """The kernel's function that its main thread sleeps in, if that may be known."""

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended and is a zombie."""
        return self.state in _DEAD

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has suspended the process."""
        return self.state in _STOPPED


def find(pid: int, *, closely: bool = False) -> Process | None:
    """The process with a pid, if there is one; with `closely`, also what it reads and where it sleeps."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # a name may hold anything, brackets too
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    read_bytes, sleeps_in = (_read_bytes(pid), _sleeps_in(pid)) if closely else (0, "")
    return Process(fields[0], int(fields[19]), cpu_s, read_bytes, sleeps_in)


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # not by `open`, which may go through a cache
    try:
        return os.read(descriptor, 4096).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _read_bytes(pid: int) -> int:
    try:
        lines = _read(f"/proc/{pid}/io").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("rchar:")), 0)


def _sleeps_in(pid: int) -> str:
    try:
        name = _read(f"/proc/{pid}/wchan").strip()
    except OSError:
        return ""
    return name if name.isidentifier() else ""  # "0" for one that runs


def is_alive(pid: int, started: int) -> bool:
    """Whether the process with this pid and start time still runs."""
    found = find(pid)
    if found is None:
        return os.path.exists(f"/proc/{pid}")  # it cannot be looked at now: too many files are open, perhaps
    return found.started == started and not found.is_dead


def namespace() -> int:
    """The pid namespace of this process. A container has its own, and its pids mean nothing outside."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def own() -> tuple[int, int]:
    """The pid and start time by which others know this process. The time is 0 if the kernel does not tell."""
    found = find(os.getpid())
    return os.getpid(), 0 if found is None else found.started


def boot() -> str:
    """The id of this boot of the host."""
    return _read("/proc/sys/kernel/random/boot_id").strip()
