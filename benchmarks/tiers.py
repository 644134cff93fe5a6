"""A disk tier: what does it cost to read from it when nothing is in memory, and what is left for storage?

Needs root and loop devices. `--part cold`: items on an ext4 of their own on a loop device, read once each in random order
by a fresh process after the page cache was dropped: one plain file for each item, the disk tier (by `Disk.get`, with its
checksums), its segments through the page cache and without checksums, and LMDB. `ratio` is the time against plain files
in the same round, and `device` what the loop device gave (field 3 of its `stat`) against the payload. `--part share`: a
loader with memory for 30 % and a disk tier for 40 % of a folder; the bytes from storage of each epoch, as part of the data.
"""

import argparse
import contextlib
import json
import os
import random
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
from stoker.cache import stores
from stoker.cache.disk import OpenDiskTier
from stoker.cache.shelf import DISK, Shelf

LEAST, MOST = 60_000, 160_000
SMALL = 3_000
BUDGET = 1 << 40
WAYS = ("files", "disk tier", "segments, page cache", "LMDB")
_SECTOR = 512


def key(number: int) -> bytes:
    """As long as a file's, with a version, and as far from the next one."""
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "little") + bytes(32)


def sizes(items: int, small: bool) -> list[int]:
    rng = random.Random(0)
    return [SMALL] * (10 * items) if small else [rng.randrange(LEAST, MOST) for _ in range(items)]


@contextlib.contextmanager
def loop_device(size: int) -> Iterator[tuple[Path, str]]:
    """A file system of its own, and the name of its device."""
    with tempfile.TemporaryDirectory() as folder:
        image, place = Path(folder, "image"), Path(folder, "place")
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
        device = subprocess.run(["losetup", "--find", "--show", str(image)], check=True, stdout=subprocess.PIPE, text=True)
        name = device.stdout.strip()
        try:
            subprocess.run(["mount", "-o", "noatime", name, str(place)], check=True)
            try:
                yield place, Path(name).name
            finally:
                subprocess.run(["umount", str(place)], check=True)
        finally:
            subprocess.run(["losetup", "--detach", name], check=True)


def given_bytes(device: str) -> int:
    """What a device has given so far."""
    return int(Path("/sys/block", device, "stat").read_text().split()[2]) * _SECTOR


def make_cold() -> None:
    """Nothing of any file is in memory, neither of the image that the device lies in."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def fill(place: Path, numbers: list[int]) -> None:
    """The same items as files, in a disk tier, and in LMDB."""
    files = place / "files"
    files.mkdir()
    room = os.statvfs(place)
    use = Shelf(place).join("items", room.f_bavail * room.f_frsize // 2, tier=DISK)
    disk = OpenDiskTier(use.folder)
    lmdb = place / "lmdb"
    lmdb.mkdir()
    store = stores.acquire(lmdb)
    for number, size in enumerate(numbers):
        payload = random.Random(number).randbytes(size)
        (files / str(number)).write_bytes(payload)
        assert disk.put([(key(number), payload)]) == 1
        assert store.put([(key(number), payload)], BUDGET) == 1
    disk.close()
    use.close()
    stores.release(store)
    stores.close_unused()


def read(way: str, place: Path, device: str, count: int) -> None:
    """In a process of its own: read all items once, one after another."""
    order = random.Random(os.getpid()).sample(range(count), count)
    keys = [key(number) for number in range(count)]
    total = 0
    reader = Reader(way, place, keys)
    before, began = given_bytes(device), time.perf_counter()
    for number in order:
        total += reader.read(number)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "device": (given_bytes(device) - before) / total, "bytes": total}))


class Reader:
    """One way to read items. What is opened once is opened here."""

    def __init__(self, way: str, place: Path, keys: list[bytes]) -> None:
        self.way, self.keys = way, keys
        self.files = str(place / "files")
        if way == "LMDB":
            self.store = stores.acquire(place / "lmdb")
        elif way != "files":
            self.folder = next(path.parent for path in place.rglob("*.segment"))
            self.disk = OpenDiskTier(self.folder)

    def read(self, number: int) -> int:
        """Read one; how many bytes of payload it has."""
        if self.way == "files":
            descriptor = os.open(f"{self.files}/{number}", os.O_RDONLY)
            found = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            os.close(descriptor)
            return len(found)
        if self.way == "LMDB":
            return len(self.store.get(self.keys[number]) or b"")
        if self.way == "disk tier":
            return len(self.disk.get(self.keys[number]) or b"")
        location = self.disk._locations.find(self.keys[number])
        assert location is not None
        segment = self.disk._segment(location.segment)
        return len(segment.read_through_page_cache(location.at, location.length)) - 8


def cold(rounds: int, items: int, small: bool) -> None:
    """Cold reads, each way in a fresh process."""
    numbers = sizes(items, small)
    payload = sum(numbers)
    with loop_device(payload * 5 + (1 << 28)) as (place, device):
        fill(place, numbers)
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                make_cold()
                command = [sys.executable, __file__, "--read", json.dumps([way, str(place), device, len(numbers)])]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found[way].append(json.loads(out.splitlines()[-1]))
        seconds = harness.Outcome({way: [row["seconds"] for row in rows] for way, rows in found.items()})
        for way in WAYS[1:]:
            rows = found[way]
            harness.report(
                f"{len(numbers):,} items of {payload / len(numbers):,.0f} bytes, cold, in random order: {way}",
                ratio=seconds.ratio(way, "files"),
                device=statistics.median(row["device"] for row in rows),
                device_of_files=statistics.median(row["device"] for row in found["files"]),
                mb_per_s=payload / 1e6 / seconds.median(way),
                mb_per_s_files=payload / 1e6 / seconds.median("files"),
                rounds=rounds,
            )


def length(raw: memoryview, index: int, rng: Any) -> int:
    return len(raw)


def share(epochs: int) -> None:
    """Bytes from storage, with memory for 30 % and a disk tier for 40 %."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as near:
        data, disk = Path(folder, "data"), Path(folder, "disk")
        data.mkdir()
        rng, total = random.Random(0), 0
        for number in range(4000):
            content = rng.randbytes(rng.randrange(10_000, 40_000))
            path = data / f"{number:05}.bin"
            path.write_bytes(content)
            os.utime(path, (0, 0))
            total += len(content)
        time.sleep(2.1)  # a file that was changed just now is not kept
        dataset = stoker.Dataset(str(data), length)
        rows, known = [], stoker.DataLoader(dataset).stats()
        with stoker.DataLoader(
            dataset,
            64,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            cache=int(0.3 * total),
            cache_dir=near,
            cache_disk=f"{disk}:{int(0.4 * total)}B",
        ) as loader:
            for _ in range(epochs):
                assert sum(int(batch.sum()) for batch in loader) == total
                stats = loader.stats()
                rows.append(
                    {
                        "storage": (stats.bytes_storage - known.bytes_storage) / total,
                        "memory": (stats.hits - stats.hits_disk - known.hits + known.hits_disk) / 4000,
                        "disk": (stats.hits_disk - known.hits_disk) / 4000,
                    }
                )
                known = stats
        later = [row["storage"] for row in rows[1:]]
        harness.report(
            f"memory for 30 % and a disk tier for 40 % of {total / 1e6:.0f} MB: bytes from storage in later epochs",
            ratio=statistics.median(later) / 0.3,
            storage=[round(row, 4) for row in later],
            epochs=[{name: round(value, 4) for name, value in row.items()} for row in rows],
            faults=known.cache_faults,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=("cold", "small", "share"), help="only this (small: cold, with items of 3 KB)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs (default: 3)")
    parser.add_argument("--items", type=int, default=6000, help="how many items are read (small: ten times as many)")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        way, place, device, count = json.loads(options.read)
        read(way, Path(place), device, count)
        return
    if options.part in (None, "share"):
        share(1 + options.rounds)
    if options.part in (None, "cold"):
        cold(options.rounds, options.items, small=False)
    if options.part in (None, "small"):
        cold(options.rounds, options.items, small=True)


if __name__ == "__main__":
    main()
