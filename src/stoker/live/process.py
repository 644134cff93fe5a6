"""What the kernel says of a process: whether it is still the one that was meant, and what it is busy with.

A process is its pid and the time at which it was started. A zombie is dead.
"""

import os
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DEAD, _STOPPED = "ZXx", "Tt"
_ON_SOCKETS = ("sk_wait", "wait_woken", "tcp_", "inet_", "unix_stream", "skb_wait")
_ON_STORAGE = ("folio_wait", "wait_on_page", "io_schedule", "nfs", "fuse", "rpc_wait", "request_wait", "blk_")
STOPPED = "stopped by a signal or a debugger"
_BUSY = 0.3
"""From this share of a core on, a process computes."""
_READS_BYTES_PER_S = 100_000


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
        """Whether it has ended, and nobody has taken note yet."""
        return self.state in _DEAD

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in _STOPPED


def find(pid: int, *, closely: bool = False) -> Process | None:
    """A process, if there is one; `closely` with what it reads and where it sleeps."""
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
    """Whether the process that was meant still runs."""
    found = find(pid)
    if found is None:
        return os.path.exists(f"/proc/{pid}")  # it cannot be looked at now: too many files are open, perhaps
    return found.started == started and not found.is_dead


def namespace() -> int:
    """In which space of pids this process counts: a container has its own, and a pid means nothing outside."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def doing(before: Process | None, after: Process | None, seconds: float) -> str:
    """What a process is busy with between two moments, in words that begin with prep, fetch, or what else it is."""
    if after is None or after.is_dead:
        return "dead"
    if after.is_stopped:
        return STOPPED
    if after.state == "D":
        return "fetch: waits for storage"
    if before is not None and before.started == after.started and seconds > 0:
        busy = (after.cpu_s - before.cpu_s) / seconds
        rate = (after.read_bytes - before.read_bytes) / seconds
        if busy >= _BUSY:
            return f"prep: {min(busy, 99):.0%} of a core".replace("%", " %")
        if rate >= _READS_BYTES_PER_S:
            return f"fetch: reads {rate / 1e6:.1f} MB/s"
    if after.state == "R":
        return "prep: runs"
    if after.sleeps_in.startswith(_ON_SOCKETS):
        return "fetch: waits for a socket"
    if after.sleeps_in.startswith(_ON_STORAGE):
        return "fetch: waits for storage"
    return f"asleep in {after.sleeps_in}" if after.sleeps_in else "asleep"
