"""What this host allows, as a list of findings: looked at, never changed."""

import contextlib
import itertools
import multiprocessing
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import ResourceError
from stoker.host.cores import usable_cores
from stoker.host.headroom import headroom_bytes
from stoker.host.mounts import file_system
from stoker.memory import Memory, is_bounded

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the host."""

    topic: str
    fact: str
    advice: str = ""
    """What to change; empty when all is well."""


def findings() -> Iterator[Finding]:
    """Everything worth knowing before a run."""
    looks = [_system, _cores, _load, _governor, _memory, _anonymous_memory, _file_size, _dev_shm, _descriptors, _processes]
    for look in [*looks, _start_methods]:
        finding = look()
        if finding is not None:
            yield finding


def _system() -> Finding:
    fact = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    advice = "" if platform.system() == "Linux" else "Stoker works on Linux; here its DataLoader behaves as torch's own."
    return Finding("system", fact, advice)


def _cores() -> Finding:
    usable, all_cores = usable_cores(), os.cpu_count() or 1
    advice = "" if usable >= 2 else "With one core, workers and training loop take turns: ask for more cores."
    return Finding("cores", f"{usable:g} usable of {all_cores}", advice)


def _load() -> Finding:
    busy, usable = os.getloadavg()[0], usable_cores()
    advice = (
        "" if busy < usable / 2 else "Other processes compete for these cores: workers will be slower than they could be."
    )
    return Finding("load", f"{busy:.1f} cores' worth of other work in the last minute", advice)


def _governor() -> Finding | None:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not path.exists():
        return None
    name = path.read_text().strip()
    advice = "Cores are kept slow to save power: `cpupower frequency-set -g performance`." if name == "powersave" else ""
    return Finding("clock", f"governor {name}", advice)


def _file_size() -> Finding | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return None
    return Finding("file size", f"up to {limit / GIB:.1f} GiB", "It bounds shared memory, too: `ulimit -f unlimited`.")


_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "afs"}


def data_findings(folder: Path) -> Iterator[Finding]:
    """What is worth knowing of the place that a dataset is in."""
    kind = file_system(folder)
    is_remote = kind in _NETWORK or kind.startswith("fuse")
    advice = "Every sample crosses a network: copy the data to a local disk if it fits." if is_remote else ""
    yield Finding("file system", f"{kind} at {folder}", advice)
    paths = [path for path in itertools.islice(folder.rglob("*"), 2000) if path.is_file()][:_FILES_READ]
    if not paths:
        yield Finding("files", "none found", "")
        return
    began, read = time.perf_counter(), 0
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read += len(file.read(64 << 20))
    taken = time.perf_counter() - began
    rate = f"{len(paths) / taken:,.0f} files/s, {read / taken / 1e6:,.0f} MB/s by one reader, from storage"
    advice = ""
    if taken / len(paths) > _SLOW_FILE_S:
        advice = (
            "Each file takes long to open: more workers read more at once, and larger files (tar shards) need fewer opens."
        )
    yield Finding("files", f"{read / len(paths) / 1e3:,.0f} KB each; {rate}", advice)


_FILES_READ = 64
_SLOW_FILE_S = 0.005


def _memory() -> Finding:
    room = headroom_bytes()
    advice = "" if room >= GIB else "Little room for batches: lower batch_size or prefetch_factor, or raise the limit."
    return Finding("memory", f"{room / GIB:.1f} GiB available to this process", advice)


def _anonymous_memory() -> Finding:
    found = _attempt(
        "shared memory",
        lambda: Memory(1 << 50).close(),
        "anonymous, not bound by /dev/shm",
        "Workers that are processes, groups and checkpoints need it.",
    )
    if found.advice or not is_bounded():
        return found
    advice = "Allow it in the seccomp profile of the container, or make /dev/shm large enough for all batches under way."
    return Finding("shared memory", "bound by the size of /dev/shm: memfd_create is refused", advice)


def _dev_shm() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Finding("/dev/shm", "missing", "torch's own queues and collectives need it: mount a tmpfs there.")
    if not os.access("/dev/shm", os.W_OK):
        return Finding("/dev/shm", "cannot be written", "Caches (but for cache_dir=), groups and `stoker top` need it.")
    if free < MIB:
        return Finding("/dev/shm", f"{free:,} bytes free", "Groups, caches and `stoker top` need a megabyte or more.")
    advice = "" if free >= GIB else "Enough for Stoker; torch's own loader wants more (`docker run --shm-size=8g`)."
    return Finding("/dev/shm", f"{free / GIB:.2g} GiB free", advice)


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "" if soft >= 1024 else f"Raise it with `ulimit -n 4096` (the hard limit is {hard})."
    return Finding("open files", f"up to {soft}", advice)


def _processes() -> Finding:
    return _attempt(
        "parent watch",
        lambda: os.close(os.pidfd_open(os.getpid())),
        "workers end at once with a killed training process",
        "pidfd_open is refused: workers of a killed process take up to 5 s to end.",
    )


def _start_methods() -> Finding:
    methods = multiprocessing.get_all_start_methods()
    return Finding("start methods", f"{', '.join(methods)} (default: {multiprocessing.get_start_method(allow_none=False)})")


def _attempt(topic: str, act: Callable[[], None], works: str, advice: str) -> Finding:
    try:
        act()
    except (OSError, AttributeError, ResourceError) as error:
        return Finding(topic, f"not available ({error})", advice)
    return Finding(topic, works)
