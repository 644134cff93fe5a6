import json
import os
import random
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cache.requests import Numbered

from stoker.cache import rebuilding, stores
from stoker.cache.cached import Cache
from stoker.cache.disk import OpenDiskTier
from stoker.cache.segments import Segment
from stoker.cache.shelf import DISK, CacheUse, Shelf
from stoker.cache.store import StoreFullError
from stoker.cache.tier import DiskTier
from stoker.meter import Tally
from stoker.sealed import BLOCK_BYTES, ItemDamagedError

ROOM = 1 << 30
SEGMENT = 1 << 16


def key(number: int, version: int = 0) -> bytes:
    return number.to_bytes(16, "big") + version.to_bytes(32, "big")


def payload(number: int, version: int = 0) -> bytes:
    rng = random.Random(f"{number} {version}")
    return rng.randbytes(rng.choice((1, 100, 4096, 5000, 30_000)))


def join(place: Path, budget: int = ROOM) -> CacheUse:
    return Shelf(place).join("numbers", budget, tier=DISK)


def filled(place: Path, items: int, budget: int = ROOM) -> Path:
    """A tier that has some items, and that nobody uses any more; its folder."""
    use = join(place, budget)
    disk = OpenDiskTier(use.folder, segment_bytes=SEGMENT)
    for number in range(items):
        disk.put([(key(number), payload(number))])
    leave(disk, use)
    return use.folder


def leave(disk: OpenDiskTier, use: CacheUse) -> None:
    disk.close()
    use.close()
    stores.close_unused()


def restart_host(folder: Path) -> None:
    """What is in memory is lost, and the index says that it was made in another boot."""
    (folder / "boot").write_text("another one")
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps(about | {"boot": "another one"}))


def inside(place: Path, items: int, budget: int = ROOM) -> set[int]:
    """Which items are there, for the next job. Their bytes are right."""
    use = join(place, budget)
    disk = OpenDiskTier(use.folder, segment_bytes=SEGMENT)
    found = set()
    for number in range(items):
        try:
            got = disk.get(key(number))
        except ItemDamagedError:
            continue
        if got is not None:
            assert bytes(got) == payload(number)
            found.add(number)
    assert disk.written_bytes() <= budget
    leave(disk, use)
    return found


def test_what_was_put_is_got_whole_and_in_blocks(tmp_path: Path) -> None:
    use = join(tmp_path)
    disk = OpenDiskTier(use.folder)
    long = random.Random(0).randbytes(2 * BLOCK_BYTES + 17)
    assert disk.get(key(1)) is None
    assert disk.put([(key(1), b"small"), (key(2), b""), (key(3), long)]) == 3
    assert [bytes(disk.get(key(number)) or b"?") for number in (1, 3)] == [b"small", long]
    assert disk.get(key(2)) == b""
    assert disk.size(key(3)) == len(long)
    assert b"".join(disk.get_block(key(3), number) or b"" for number in range(3)) == long
    assert all(path.stat().st_mode & 0o077 == 0 for path in use.folder.iterdir())
    leave(disk, use)


def test_the_budget_is_exact_and_what_came_first_stays(tmp_path: Path) -> None:
    use = join(tmp_path, 100)
    disk = OpenDiskTier(use.folder)
    assert disk.put([(key(number), bytes(size)) for number, size in enumerate((60, 50, 40, 1))]) == 2  # 60, then 40
    assert disk.room_bytes() == 0
    assert disk.put([(key(9), b"x")]) == 0
    assert [disk.size(key(number)) for number in range(4)] == [60, None, 40, None]
    leave(disk, use)


def test_another_version_replaces_the_one_before_and_is_written_once(tmp_path: Path) -> None:
    use = join(tmp_path)
    disk = OpenDiskTier(use.folder)
    assert disk.put([(key(1), b"old")]) == 1
    assert disk.put([(key(1), b"old")]) == 0
    assert disk.put([(key(1, 1), b"newer")]) == 1
    assert (disk.get(key(1)), bytes(disk.get(key(1, 1)) or b"")) == (None, b"newer")
    assert disk.stats().items == 1
    assert disk.written_bytes() == 8  # the old one is on the disk, too
    leave(disk, use)


def test_it_outlives_a_restart_of_the_host(tmp_path: Path) -> None:
    folder = filled(tmp_path, 200)
    assert len(list(folder.glob("*.segment"))) > 5
    restart_host(folder)
    listed = Shelf(tmp_path).caches()
    assert [(found.name, found.tier) for found in listed] == [("numbers", "disk")]
    assert listed[0].stats.items > 100  # those in full segments are certain
    assert inside(tmp_path, 200) == set(range(200))


def test_what_was_not_synced_is_dropped_after_a_restart(tmp_path: Path) -> None:
    folder = filled(tmp_path, 190)
    last = max(folder.glob("*.segment"))
    before = last.stat().st_size
    kept = Segment(folder, int(last.stem))
    assert kept.table() is None
    records = list(kept.walk())
    _, at, length = records[len(records) // 2].location
    with last.open("r+b") as file:  # pages that were never written back are zeros, or missing
        file.seek(at)
        file.write(bytes(length))
        file.truncate(before - 1)
    restart_host(folder)
    found = inside(tmp_path, 190)
    lost = {int.from_bytes(records[number].key[:16], "big") for number in (len(records) // 2, -1)}
    assert set(range(190)) - found == lost
    use = join(tmp_path)
    disk = OpenDiskTier(use.folder, segment_bytes=SEGMENT)
    assert disk.put([(key(number), payload(number)) for number in sorted(lost)]) == len(lost)  # they are kept anew
    leave(disk, use)
    assert inside(tmp_path, 190) == set(range(190))


def test_a_lost_or_damaged_index_is_made_anew(tmp_path: Path) -> None:
    folder = filled(tmp_path, 100)
    (folder / "data.mdb").write_bytes(b"nonsense" * 1000)
    assert inside(tmp_path, 100) == set(range(100))
    (folder / "data.mdb").unlink()
    (folder / "lock.mdb").unlink()
    assert inside(tmp_path, 100) == set(range(100))


def test_a_smaller_budget_gives_the_disk_back(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    whole = Shelf(tmp_path).caches()[0].stats
    found = inside(tmp_path, 200, whole.payload_bytes // 2)
    after = Shelf(tmp_path).caches()[0].stats
    assert 0 < after.payload_bytes <= whole.payload_bytes // 2
    assert after.occupied_bytes < 0.6 * whole.occupied_bytes
    assert len(found) == after.items


def test_segments_that_nobody_asks_for_any_more_are_given_back(tmp_path: Path) -> None:
    folder = filled(tmp_path, 200)
    use = join(tmp_path)
    disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
    disk.put([(key(number, 1), payload(number, 1)) for number in range(200)])
    leave(disk, use)
    use = join(tmp_path)
    disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
    assert disk.written_bytes() < 1.5 * sum(len(payload(number, 1)) for number in range(200))
    assert all(disk.get(key(number, 1)) == payload(number, 1) for number in range(200))
    leave(disk, use)


def test_a_cut_file_gives_no_wrong_byte_and_no_signal(tmp_path: Path) -> None:
    folder = filled(tmp_path, 200)
    rng = random.Random(0)
    use = join(tmp_path)
    disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
    for path in folder.glob("*.segment"):
        os.truncate(path, rng.randrange(path.stat().st_size))
    wrong, damaged = [], 0
    for number in range(200):
        try:
            found = disk.get(key(number))
            wrong += [number] if found != payload(number) else []
        except ItemDamagedError:
            damaged += 1
            disk.drop(key(number))
            assert disk.get(key(number)) is None
    assert not wrong
    assert damaged > 20
    leave(disk, use)
    restart_host(folder)
    assert len(inside(tmp_path, 200)) >= 50


@pytest.mark.parametrize("harm", ["head", "empty", "gone"])
def test_one_segment_that_is_lost_costs_its_own_items_and_its_room_comes_back(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = filled(tmp_path, 200)
    whole = Shelf(tmp_path).caches()[0].stats.payload_bytes
    harmed = sorted(folder.glob("*.segment"))[1]
    of_it = {int.from_bytes(one.key[:16], "big") for one in Segment(folder, int(harmed.stem)).walk()}
    lost = sum(len(payload(number)) for number in of_it)
    harm_segment(harmed, harm)
    assert inside_as_a_job(tmp_path, 200) == set(range(200)) - of_it
    assert inside_as_a_job(tmp_path, 200) == set(range(200)) - of_it
    assert not harmed.exists()
    assert Shelf(tmp_path).caches()[0].stats.payload_bytes == whole - lost


@pytest.mark.parametrize("harm", ["head", "empty", "gone", "cut"])
def test_what_is_written_after_the_last_segment_was_harmed_outlives_a_restart(tmp_path: Path, harm: str) -> None:
    folder = filled(tmp_path, 190)
    harm_segment(max(folder.glob("*.segment")), harm)
    use = join(tmp_path)
    disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
    new = set(range(1000, 1003))
    assert disk.put([(key(number), payload(number)) for number in new]) == len(new)
    leave(disk, use)
    restart_host(folder)
    assert new <= inside(tmp_path, 1003)


def test_a_process_that_may_open_few_files_keeps_most_of_them_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(tmp_path, 200)
    assert len(list(folder.glob("*.segment"))) > 10
    use = join(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 4096))
    disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
    before = len(os.listdir("/proc/self/fd"))
    assert all(disk.get(key(number)) == payload(number) for number in range(200))
    assert len(os.listdir("/proc/self/fd")) <= before + 10
    leave(disk, use)


def harm_segment(path: Path, harm: str) -> None:
    if harm == "head":
        with path.open("r+b") as file:
            file.write(bytes(8))
    elif harm == "empty":
        os.truncate(path, 0)
    elif harm == "cut":
        os.truncate(path, 40)
    else:
        path.unlink()


def inside_as_a_job(place: Path, items: int) -> set[int]:
    """Which items a job gets. It drops those that are damaged."""
    tally = Tally()
    tier = DiskTier.joined("numbers", f"{place}:{ROOM}B", tally)
    assert tier is not None
    found = {number for number in range(items) if tier.get(key(number)) is not None}
    assert all(bytes(tier.get(key(number)) or b"") == payload(number) for number in found)
    tier.close()
    stores.close_unused()
    return found


def test_an_index_that_is_cut_under_a_job_is_an_error(tmp_path: Path) -> None:
    folder = filled(tmp_path, 200)
    use = join(tmp_path)
    disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
    os.truncate(folder / "data.mdb", 3 * 4096)
    with pytest.raises(OSError, match="damaged"):
        disk.get(key(1))
    stores.forget(folder)
    leave(disk, use)
    assert inside(tmp_path, 200) == set(range(200))


def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    use = join(tmp_path)
    rng = random.Random(24)
    told: set[int] = set()
    first = 0
    for kill in range(100):
        reading, writing = os.pipe()
        children = [_writer(use.folder, first + 1000 * number, writing) for number in range(2)]
        os.close(writing)
        assert os.read(reading, 4)  # they go on, whatever those before have left
        threading.Event().wait(rng.random() * 0.005)
        for child in children:
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
        done = b""
        while more := os.read(reading, 1 << 16):
            done += more
        os.close(reading)
        told.update(int.from_bytes(done[at : at + 4], "big") for at in range(0, len(done) - 3, 4))
        first += 2000
        if kill % 10 == 9:
            disk = OpenDiskTier(use.folder, segment_bytes=SEGMENT)
            assert all(disk.get(key(number)) == payload(number) for number in told)
            assert disk.written_bytes() == sum(len(payload(n)) for n in range(first) if disk.size(key(n)) is not None)
            disk.close()
            stores.close_unused()
    use.close()
    restart_host(use.folder)
    assert told <= inside(tmp_path, first)


def _writer(folder: Path, first: int, tell: int) -> int:
    child = os.fork()
    if not child:
        try:
            disk = OpenDiskTier(folder, segment_bytes=SEGMENT)
            for number in range(first, first + 1000):
                disk.put([(key(number), payload(number))])
                os.write(tell, number.to_bytes(4, "big"))
        finally:
            os._exit(1)
    return child


def test_a_full_file_system_is_said_and_what_was_kept_stays(small_tmpfs: Callable[[str], Path]) -> None:
    place = small_tmpfs("size=70m")
    use = join(place, 1 << 26)
    disk = OpenDiskTier(use.folder)
    kept = 0
    with pytest.raises(StoreFullError, match="full"):
        for number in range(500):
            kept += disk.put([(key(number), bytes([number % 256]) * 50_000)])
    assert 20 < kept < 200
    assert all(disk.get(key(number)) == bytes([number % 256]) * 50_000 for number in range(kept))
    assert disk.put([(key(900), b"x")]) == 0  # not tried again at once
    leave(disk, use)


def test_a_cache_fills_memory_and_then_the_disk(tmp_path: Path, shelf_dir: Path) -> None:
    cache = Cache("numbers", 30_000, shelf_dir, disk=f"{tmp_path}:40KB")
    for epoch in range(3):
        for start in range(0, 100, 10):
            request = Numbered(range(start, start + 10))
            assert [bytes(found) for found in cache.fetch(request)] == [request.payload(number) for number in request.ids]
        hits, misses, _, from_storage, _, faults, why, *_, on_disk = cache.tally.take()
        assert (hits, misses, on_disk, from_storage) == ((0, 100, 0, 100_000) if not epoch else (70, 30, 40, 30_000))
        assert not faults, why
    cache.close()
    again = Cache("numbers", 30_000, shelf_dir, disk=f"{tmp_path}:40KB")
    again.fetch(Numbered(range(100)))
    assert again.tally.take()[0] == 70
    again.close()


def test_a_disk_tier_that_is_removed_under_a_job(tmp_path: Path, shelf_dir: Path) -> None:
    cache = Cache("numbers", 8, shelf_dir, disk=f"{tmp_path}:1MB")
    request = Numbered(range(20))
    cache.fetch(request)
    shelf = Shelf(tmp_path)
    shelf.remove(shelf.caches()[0])
    for _ in range(2):
        assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    counts: Any = cache.tally.take()
    assert counts[5] == 1
    assert "disk tier" in counts[6]
    cache.close()


def test_a_look_from_outside_says_what_is_there(tmp_path: Path) -> None:
    folder = filled(tmp_path, 50)
    stats = rebuilding.stats(folder)
    assert (stats.items, stats.payload_bytes) == (50, sum(len(payload(number)) for number in range(50)))
    assert stats.occupied_bytes > stats.payload_bytes
