import multiprocessing
import os
import pickle
import random
import shutil
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cache.requests import Numbered, fill, run_epochs
from tests.tries import HANG_S

from stoker.cache import claims, stores
from stoker.cache.cached import Cache
from stoker.cache.inspection import NUMBER, USED
from stoker.cache.shelf import Shelf
from stoker.cache.wanted import Ruling

_fork = multiprocessing.get_context("fork")
ITEMS, ROOM, SIZE = 400, 140, 1000


def in_processes(count: int, run: Callable[[int], Any]) -> list[Any]:
    """What each of several processes returns."""
    results = _fork.SimpleQueue()
    processes = [_fork.Process(target=lambda n=number: results.put((n, run(n)))) for number in range(count)]
    for process in processes:
        process.start()
    answers = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    return [answers[number] for number in range(count)]


@pytest.mark.parametrize("processes", [1, 4, 8])
def test_hits_are_exactly_what_is_cached(shelf_dir: Path, processes: int) -> None:
    counted = in_processes(
        processes, lambda number: run_epochs(shelf_dir, ROOM * SIZE, [10 * number + e for e in range(4)], ITEMS)
    )
    for epochs in counted:
        for hits, misses, bytes_cache, bytes_storage in epochs[1:]:
            assert (hits, misses) == (ROOM, ITEMS - ROOM)
            assert (bytes_cache, bytes_storage) == (ROOM * SIZE, (ITEMS - ROOM) * SIZE)


@pytest.mark.parametrize("seeds", [(1, 2), (3, 3)], ids=["orders that differ", "the same order"])
def test_two_jobs_at_once_read_what_is_cached_once(shelf_dir: Path, tmp_path: Path, seeds: tuple[int, int]) -> None:
    log = tmp_path / "log"
    in_processes(2, lambda number: run_epochs(shelf_dir, ITEMS * SIZE, [seeds[number]], ITEMS, log))
    reads = Counter(log.read_text().split())
    assert len(reads) == ITEMS
    assert sum(reads.values()) <= ITEMS * 1.01


def test_who_is_stopped_does_not_stop_others(shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PATIENCE_S", 0.2)
    cache = Cache("numbers", 10_000, shelf_dir)
    reading = _fork.Event()

    class Stuck(Numbered):
        def read(self, positions: list[int]) -> list[bytes]:
            reading.set()
            signal.pause()
            raise AssertionError

    process = _fork.Process(target=lambda: cache.fetch(Stuck([7])))
    process.start()
    reading.wait()
    psutil.Process(process.pid).suspend()
    request = Numbered([7])
    assert cache.fetch(request) == [request.payload(7)]
    process.kill()
    process.join()
    assert not cache.holds(request.keys[0])  # a reader without the claim keeps nothing
    assert cache.fetch(request) == [request.payload(7)]  # a claim is gone with its holder
    assert cache.holds(request.keys[0])


def test_one_that_fails_to_read_leaves_no_claim(shelf_dir: Path) -> None:
    cache = Cache("numbers", 10_000, shelf_dir)

    class Failing(Numbered):
        def read(self, positions: list[int]) -> list[bytes]:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        cache.fetch(Failing([1, 2]))
    assert len(cache.fetch(Numbered([1, 2]))) == 2
    assert cache.holds(Numbered([1]).keys[0])


def test_removed_under_a_running_job(shelf_dir: Path) -> None:
    cache = Cache("numbers", 10_000, shelf_dir)
    cache.fetch(Numbered(range(5)))
    assert cache.folder is not None
    shutil.rmtree(cache.folder)
    request = Numbered(range(3, 12))
    assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    counts = cache.tally.take()
    assert counts[5] == 1
    assert "removed" in counts[6]
    cache.fetch(request)
    assert cache.tally.take()[:2] == (0, 9)  # from storage, and no more is said


def test_removed_while_nothing_is_written(shelf_dir: Path) -> None:
    cache = Cache("numbers", 5000, shelf_dir)
    cache.fetch(Numbered(range(5)))
    assert cache.folder is not None
    shutil.rmtree(cache.folder)
    for _ in range(100):
        request = Numbered(range(5))
        assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    assert cache.tally.take()[5] == 1
    assert not cache.holds(Numbered([0]).keys[0])


def flip(path: Path, wanted: bytes, bit: int = 3) -> None:
    """Change one bit in the middle of some bytes, as a faulty disk does, wherever they are: free pages may have a copy."""
    content = path.read_bytes()
    place = content.index(wanted)
    with path.open("r+b") as file:
        while place >= 0:
            middle = place + len(wanted) // 2
            file.seek(middle)
            file.write(bytes([content[middle] ^ 1 << bit]))
            place = content.find(wanted, place + 1)


@pytest.mark.parametrize("room", [20, 100], ids=["full", "with room"])
def test_a_flipped_bit_is_read_anew_and_counted_once(shelf_dir: Path, room: int) -> None:
    cache = Cache("numbers", room * SIZE, shelf_dir)
    request = Numbered(range(20))
    expected = [request.payload(number) for number in request.ids]
    assert cache.fetch(request) == expected
    cache.tally.take()
    assert cache.folder is not None
    flip(cache.folder / "data.mdb", request.payload(7))
    assert cache.fetch(request) == expected
    hits, misses, *_, faults, fault = cache.tally.take()[:7]
    assert (hits, misses, faults) == (19, 1, 1)
    assert str(cache.folder) in fault
    assert cache.fetch(request) == expected  # what was read anew has taken its place
    hits, misses, *_, faults, fault = cache.tally.take()[:7]
    assert (hits, misses, faults) == (20, 0, 0)


def test_bytes_of_another_item_are_wrong(shelf_dir: Path) -> None:
    cache = Cache("numbers", 100_000, shelf_dir)
    request = Numbered(range(20), size=3000)
    cache.fetch(request)
    cache.tally.take()
    assert cache.folder is not None
    path = cache.folder / "data.mdb"
    content = path.read_bytes()
    one, other = (content.index(request.payload(number)) for number in (3, 4))
    with path.open("r+b") as file:
        file.seek(one)
        file.write(content[other : other + 3008])  # with its checksum
    assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    assert cache.tally.take()[5] == 1


def test_where_a_policy_decides_a_damaged_item_is_kept_again(shelf_dir: Path) -> None:
    cache = Cache("numbers", 20_000, shelf_dir, is_private=True)
    request, everything, nothing = Numbered(range(20)), Ruling(range(20), ()), Ruling((), ())
    expected = cache.fetch(request, everything)
    assert cache.folder is not None
    flip(cache.folder / "data.mdb", request.payload(5))
    for _ in range(3):
        assert cache.fetch(request, nothing) == expected
    hits, misses, *_, faults, _ = cache.tally.take()[:7]
    assert (hits, misses, faults) == (59, 21, 1)


def test_a_store_that_is_cut_under_a_running_job(shelf_dir: Path) -> None:
    cache = Cache("numbers", 200_000, shelf_dir)
    request = Numbered(range(100))
    expected = cache.fetch(request)
    assert cache.folder is not None
    os.truncate(cache.folder / "data.mdb", 3 * 4096)
    assert cache.fetch(request) == expected
    *_, faults, fault = cache.tally.take()[:7]
    assert faults == 1
    assert f"the cache in {cache.folder} is damaged" in fault
    cache.close()
    again = Cache("numbers", 200_000, shelf_dir)
    assert again.fetch(request) == expected
    assert "is damaged" in again.tally.take()[6]  # it is not trusted, and made anew
    assert again.fetch(request) == expected
    assert again.tally.take()[:2] == (100, 0)


@pytest.mark.parametrize("options", ["size=1m,ro", "size=1m"])
def test_where_nothing_can_be_kept(small_tmpfs: Callable[[str], Path], options: str) -> None:
    place = small_tmpfs(options)
    cache = Cache("numbers", 600_000, place)
    if "ro" not in options:
        fill(place)
    request = Numbered(range(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    counts = cache.tally.take()
    assert counts[5] >= 1
    assert counts[6]


def test_a_writer_that_was_stopped_stops_nobody(shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PATIENCE_S", 0.2)
    cache = Cache("numbers", 100_000, shelf_dir)
    cache.fetch(Numbered([1]))
    writing = _fork.Event()

    def write() -> None:
        opened = cache._open()
        assert opened is not None
        assert opened.store._writing.wait(b"\xff" * 7)
        writing.set()
        signal.pause()

    process = _fork.Process(target=write)
    process.start()
    writing.wait()
    psutil.Process(process.pid).suspend()
    request = Numbered([2, 3])
    assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    assert "another process has been writing" in cache.tally.take()[6]
    process.kill()
    process.join()


def test_threads_fetch_while_the_process_forks(shelf_dir: Path) -> None:
    cache = Cache("numbers", 100_000, shelf_dir)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            cache.fetch(Numbered(range(5)))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            process = _fork.Process(target=lambda: cache.fetch(Numbered(range(7))))
            process.start()
            process.join(HANG_S)
            assert process.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_pickled_cache_whose_first_owner_has_gone(shelf_dir: Path) -> None:
    cache = Cache("numbers", 100_000, shelf_dir)
    travelled = pickle.dumps(cache)
    cache.close()
    again = pickle.loads(travelled)
    again.fetch(Numbered(range(3)))
    assert again.holds(Numbered([2]).keys[0])


def test_an_interrupted_fetch_leaves_no_claim(shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache("numbers", 100_000, shelf_dir)

    class Interrupted(Numbered):
        def sizes(self, positions: list[int]) -> list[int]:
            yield from [self.size]  # type: ignore[misc]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fetch(Interrupted([1, 2]))
    monkeypatch.setattr(claims, "PATIENCE_S", 60.0)
    assert len(cache.fetch(Numbered([1, 2]))) == 2


def test_a_smaller_budget_holds_for_the_job_that_comes_next(shelf_dir: Path) -> None:
    with_more = Cache("numbers", 400_000, shelf_dir)
    with_more.fetch(Numbered(range(400)))
    with_more.close()
    cache = Cache("numbers", 100_000, shelf_dir)
    stats = cache.stats()
    assert stats is not None
    assert (stats.items, stats.payload_bytes) == (100, 100_000)
    assert stats.occupied_bytes < 300_000  # whole pages; what was there is given back
    cache.fetch(Numbered(range(400)))
    assert cache.tally.take()[:2] == (100, 300)  # what was kept is found again
    assert cache.stats() == stats


@pytest.mark.parametrize("fits", [True, False], ids=["all of it", "a part of it"])
def test_a_smaller_budget_holds_when_the_job_with_the_larger_one_has_gone(shelf_dir: Path, fits: bool) -> None:
    cache = Cache("numbers", 100_000, shelf_dir)
    with_more = Cache("numbers", 400_000, shelf_dir)
    with_more.fetch(Numbered(range(400)))
    cache.fetch(Numbered(range(400)))
    stats = cache.stats()
    assert stats is not None
    assert stats.items == 400  # as long as the other one lives
    with_more.close()
    for _ in range(3):
        cache.fetch(Numbered(range(300 if fits else 500)))
    stats = cache.stats()
    assert stats is not None
    assert (stats.items, stats.payload_bytes) == (100, 100_000)


def test_workers_that_outlive_their_job_forget_nothing(shelf_dir: Path) -> None:
    cache = Cache("numbers", 100_000, shelf_dir)
    cache.fetch(Numbered(range(100)))
    assert cache._membership is not None
    cache._membership.close()
    for _ in range(6):
        cache.fetch(Numbered(range(100)))
    assert cache.tally.take()[:2] == (600, 100)


@pytest.mark.parametrize("sum_of_all", [b"", b"123", NUMBER.pack(0)], ids=["none", "short", "too small"])
def test_a_store_that_says_something_else_than_it_has(shelf_dir: Path, sum_of_all: bytes) -> None:
    cache = Cache("numbers", 10_000, shelf_dir)
    cache.fetch(Numbered(range(5)))
    assert cache.folder is not None
    with stores.visiting(cache.folder) as store, store._environment.begin(write=True) as transaction:
        transaction.put(USED, sum_of_all)
    request = Numbered(range(5, 9))
    advice = Ruling(range(4), Numbered(range(5)).keys)
    assert cache.fetch(request, advice) == [request.payload(number) for number in request.ids]
    counts = cache.tally.take()
    assert counts[5] == 1
    assert f"the cache in {cache.folder} is damaged" in counts[6]
    cache.close()
    assert "is damaged" in Cache("numbers", 10_000, shelf_dir).tally.take()[6]


def _come_and_go(directory: Path, seed: int, budgets: list[int], wrong: Any) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        cache = Cache("numbers", rng.choice(budgets), directory)
        for _ in range(4):
            request = Numbered([rng.randrange(60) for _ in range(8)])
            if cache.fetch(request) != [request.payload(number) for number in request.ids]:
                wrong.put("wrong bytes")
        stats = cache.stats()
        if stats is not None and stats.payload_bytes > max(budgets):
            wrong.put(f"{stats.payload_bytes:,} bytes")
        if rng.random() < 0.3:
            os.kill(os.getpid(), signal.SIGKILL)
        cache.close()


def test_a_race_of_budgets(shelf_dir: Path) -> None:
    """Eight processes come and go with budgets of their own, or are killed: the budget of those that live holds."""
    budgets = [2000, 5000, 9000, 20_000]
    wrong = _fork.SimpleQueue()
    jobs = [_fork.Process(target=_come_and_go, args=(shelf_dir, seed, budgets, wrong)) for seed in range(8)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(HANG_S)
        assert job.exitcode in (0, -signal.SIGKILL)
    assert wrong.empty(), wrong.get()
    last = Cache("numbers", 3000, shelf_dir)
    assert last.tally.take()[5] == 0
    stats = last.stats()
    assert stats is not None
    assert stats.payload_bytes <= 3000
    assert [found.jobs for found in Shelf(shelf_dir).caches()] == [1]
