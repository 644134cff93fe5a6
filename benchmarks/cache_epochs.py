"""Epochs over files on a disk that is limited for real, with memory for 65 % of them: which cache reads how much?

Needs root and the blkio and memory controllers (cgroup v1). Every contender is a process of its own, with two workers, in
groups of its own, with the same limits: 50 MB/s from the disk, and memory for what Python and its workers need (measured
beforehand), for 65 % of the data as the store holds it, and for what a cache leaves to the training. tmpfs is charged to
the same limit as the page cache, so it is the same memory for everybody. All begin cold. Preparing a sample is a checksum,
so that the disk is the limit.

`ratio` is against torch's loader on the page cache. `of_ideal` is the time against that of D minus C bytes at 50 MB/s, if C
are kept. `device` is what the kernel counted at the disk (`blkio.throttle.io_service_bytes`) in an epoch after the first,
against D minus C, and `counted` what the loader says. Files fill whole blocks of the disk, which is 2 % of them here:
`in_blocks` is `device` with both counted in blocks. It is below 1 where the memory that a cache leaves to the training
has held some of the other files in the page cache. `room` is the limit less what the processes themselves took, against
D: what the page cache had to itself, and our cache only in part.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.utils.data

import harness
import stoker
from stoker.cache.store import RESERVE_BYTES
from stoker.host.mounts import file_system

FILES = 8192
SHARE = 0.65
LRU = 0.9
"""Of that for LRU: a store that evicts has a tenth of its space in pages that wait to be used again."""
RATE = 50_000_000
WORKERS, BATCH = 2, 64
_BLOCK = 4096
_CONTROLLERS = Path("/sys/fs/cgroup")


class Folder(torch.utils.data.Dataset[tuple[int, int]]):
    """Files as any dataset reads them: it knows nothing of a cache."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(str(path) for path in Path(folder).glob("*/*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, int]:
        with open(self.paths[index], "rb") as file:
            return zlib.crc32(file.read()), index


class Forgotten(Folder):
    """The same, with nothing left in the page cache."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        with open(self.paths[index], "rb") as file:
            sample = zlib.crc32(file.read()), index
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return sample


def checksum(raw: memoryview, index: int, rng: Any) -> tuple[int, int]:
    return zlib.crc32(raw), index


def make_loader(contender: str, folder: str, cache_dir: str, cache_bytes: int) -> Any:
    """A contender's loader. All else is the same."""
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "shuffle": True,
        "num_workers": WORKERS,
        "persistent_workers": True,
    }
    cache: dict[str, Any] = {"cache": cache_bytes, "cache_dir": cache_dir}
    match contender:
        case "no cache":
            return torch.utils.data.DataLoader(Forgotten(folder), **options)
        case "page cache":
            return torch.utils.data.DataLoader(Folder(folder), **options)
        case "unmodified dataset":
            return stoker.DataLoader(Folder(folder), **options, **cache)
        case "lru":
            return stoker.DataLoader(stoker.Dataset(folder, checksum), **options, **cache, seed=0, cache_policy="lru")
        case _:
            return stoker.DataLoader(stoker.Dataset(folder, checksum), **options, **cache, seed=0)


class Group:
    """A pair of control groups, for one process and its children."""

    def __init__(self, name: str) -> None:
        self.blkio, self.memory = (_CONTROLLERS / kind / name for kind in ("blkio", "memory"))

    def join(self) -> None:
        for folder in (self.blkio, self.memory):
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def delivered_bytes(self) -> int:
        """What the disk has given to these processes."""
        rows = (row.split() for row in (self.blkio / "blkio.throttle.io_service_bytes").read_text().splitlines())
        return sum(int(row[2]) for row in rows if len(row) == 3 and row[1] == "Read")

    def footprint_bytes(self) -> int:
        """Memory of the processes and of the kernel for them: neither page cache nor tmpfs."""
        stat = dict(row.split() for row in (self.memory / "memory.stat").read_text().splitlines())
        return int(stat["total_rss"]) + int((self.memory / "memory.kmem.usage_in_bytes").read_text())


@contextlib.contextmanager
def limited(folder: str, rate: int | None, memory_bytes: int | None) -> Iterator[Group]:
    """Groups with these limits, which are removed with what is left in them."""
    group = Group(f"stoker-{os.getpid()}")
    device = os.stat(folder).st_dev
    try:
        group.blkio.mkdir()
        group.memory.mkdir()
        if rate is not None:
            limit = f"{os.major(device)}:{os.minor(device)} {rate}"
            (group.blkio / "blkio.throttle.read_bps_device").write_text(limit)
        if memory_bytes is not None:
            (group.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
        yield group
    finally:
        for part in (group.blkio, group.memory):
            for _ in range(100):
                with contextlib.suppress(OSError):
                    for pid in (part / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                    part.rmdir()
                if not part.exists():
                    break
                time.sleep(0.1)


def make_files(folder: str) -> tuple[int, int]:
    """Files of the size of pictures, in eight classes; their bytes, and those of the blocks that they fill."""
    rng = random.Random(0)
    sizes = [rng.randrange(60_000, 160_000) for _ in range(FILES)]
    for number, size in enumerate(sizes):
        path = Path(folder, str(number % 8), f"{number:05}.jpg")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(size))
        os.utime(path, (0, 0))  # as files are that nobody writes to any more
    os.sync()
    return sum(sizes), sum(-(-size // _BLOCK) * _BLOCK for size in sizes)


def make_cold(folder: str) -> None:
    """Nothing of the files is in memory."""
    for path in Path(folder).glob("*/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run(contender: str, folder: str, epochs: int, cache_bytes: int, rate: int | None, memory: int | None) -> dict[str, Any]:
    """What one contender does, in a process and groups of its own."""
    make_cold(folder)
    with tempfile.TemporaryDirectory(prefix="stoker-", dir="/dev/shm") as cache_dir, limited(folder, rate, memory) as group:
        words = [contender, folder, cache_dir, cache_bytes, epochs, group.blkio.name]
        command = [sys.executable, "-W", "ignore", __file__, "--as", json.dumps(words)]
        child = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, preexec_fn=group.join)
        found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
        found["occupied"] = sum(path.stat().st_blocks * 512 for path in Path(cache_dir).rglob("data.mdb"))
        return found


def contend(contender: str, folder: str, cache_dir: str, cache_bytes: int, epochs: int, name: str) -> None:
    """The contender itself: its epochs, as JSON."""
    group = Group(name)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = make_loader(contender, folder, cache_dir, cache_bytes)
    rows = []
    known = 0
    for _ in range(epochs):
        before, began, samples = group.delivered_bytes(), time.perf_counter(), 0
        for _, numbers in loader:
            samples += len(numbers)
        seconds = time.perf_counter() - began
        row = {"seconds": seconds, "device": group.delivered_bytes() - before}
        if isinstance(loader, stoker.DataLoader):
            stats = loader.stats()
            row |= {"counted": stats.bytes_storage - known, "faults": stats.cache_faults}
            known = stats.bytes_storage
        assert samples == FILES
        rows.append(row)
    print(json.dumps({"epochs": rows, "footprint": group.footprint_bytes()}))
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2, help="epochs after the first (default: 2)")
    parser.add_argument("--as", dest="words", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.words:
        contend(*json.loads(options.words))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(folder, options.rounds)


def measure(folder: str, rounds: int) -> None:
    if file_system(Path(folder)) == "tmpfs":
        raise SystemExit("the folder for temporary files is in memory: set TMPDIR to one on a disk")
    total, blocks = make_files(folder)
    room = int(SHARE * total)
    free = {name: run(name, folder, 1, room, None, None) for name in ("page cache", "keep-first")}
    footprint = max(found["footprint"] for found in free.values())
    memory = footprint + free["keep-first"]["occupied"] + RESERVE_BYTES
    left = total - room
    found = {
        name: run(name, folder, 1 + rounds, int(LRU * room) if name == "lru" else room, RATE, memory)
        for name in ("keep-first", "page cache", "lru", "unmodified dataset", "no cache")
    }
    later = {name: each["epochs"][1:] for name, each in found.items()}
    seconds = {name: statistics.median(row["seconds"] for row in rows) for name, rows in later.items()}
    device = {name: statistics.median(row["device"] for row in rows) for name, rows in later.items()}
    for name in found:
        counted = [row["counted"] for row in later[name] if "counted" in row]
        harness.report(
            f"epochs of {total / 1e6:.0f} MB from {RATE / 1e6:.0f} MB/s, memory for {SHARE:.0%}: {name}",
            ratio=seconds["page cache"] / seconds[name],
            seconds=seconds[name],
            of_ideal=seconds[name] / (left / RATE),
            device=device[name] / left,
            in_blocks=device[name] / (blocks * left / total),
            epochs=[round(row["device"] / left, 3) for row in later[name]],
            room=min(1.0, (memory - found[name]["footprint"]) / total),
            **({"counted": statistics.median(counted) / left, "faults": later[name][-1]["faults"]} if counted else {}),
        )


if __name__ == "__main__":
    main()
