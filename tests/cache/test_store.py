import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cache.killed_writers import crowd, one_after_another
from tests.cache.requests import fill

from stoker.cache import stores
from stoker.cache.store import Store, StoreFullError
from stoker.cache.stores import acquire

KEY = b"k" * 16


@pytest.fixture
def folder(shelf_dir: Path) -> Path:
    return shelf_dir


def test_what_was_put_is_got(folder: Path) -> None:
    cache = acquire(folder)
    assert cache.get(KEY) is None
    assert cache.put([(KEY, b"payload")], 100) == 1
    assert cache.get(KEY) == b"payload"
    assert cache.size(KEY) == 7
    assert acquire(folder) is cache
    stores.forget(folder)
    assert acquire(folder).get(KEY) == b"payload"


def test_budget_is_exact_and_smaller_ones_may_still_enter(folder: Path) -> None:
    cache = acquire(folder)
    items = [(bytes([number]) * 16, bytes(size)) for number, size in enumerate([60, 50, 40, 1])]
    assert cache.put(items, 100) == 2  # 60, then 40
    assert cache.stats().payload_bytes == 100
    assert [cache.size(key) is not None for key, _ in items] == [True, False, True, False]
    assert cache.put([(b"z" * 16, b"x")], 101) == 1
    assert cache.stats().items == 3


def test_another_version_replaces_the_one_before(folder: Path) -> None:
    cache = acquire(folder)
    cache.put([(KEY + b"1", b"old" * 10)], 40)
    assert cache.get(KEY + b"2") is None
    assert cache.put([(KEY + b"2", b"new" * 12)], 40) == 1  # both would not fit
    assert cache.get(KEY + b"1") is None
    assert cache.get(KEY + b"2") == b"new" * 12
    assert cache.stats().payload_bytes == 36


def test_put_twice_counts_once(folder: Path) -> None:
    cache = acquire(folder)
    assert cache.put([(KEY, b"12345")], 100) == 1
    assert cache.put([(KEY, b"12345")], 100) == 0
    assert cache.stats().payload_bytes == 5


def test_evicted_items_make_room(folder: Path) -> None:
    cache = acquire(folder)
    cache.put([(KEY, bytes(80))], 100)
    assert cache.put([(b"n" * 16, bytes(90))], 100, evict=[KEY]) == 1
    assert cache.get(KEY) is None
    assert cache.stats().payload_bytes == 90


def test_files_are_the_owners_alone(folder: Path) -> None:
    acquire(folder).put([(KEY, b"secret")], 100)
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_forked_child_reads_and_writes_beside_its_parent(folder: Path) -> None:
    cache = acquire(folder)
    cache.put([(KEY, b"of the parent")], 1000)
    child = os.fork()
    if child == 0:
        own = acquire(folder)
        ok = own is not cache and own.get(KEY) == b"of the parent"
        own.put([(b"c" * 16, b"of the child")], 1000)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get(b"c" * 16) == b"of the child"
    cache.put([(b"d" * 16, b"after")], 1000)
    assert cache.get(KEY) == b"of the parent"


def test_threads_read_while_the_process_forks(folder: Path) -> None:
    cache = acquire(folder)
    payload = bytes(50_000)
    cache.put([(KEY, payload)], 100_000)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            if cache.get(KEY) != payload:
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0 if acquire(folder).get(KEY) == payload else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_full_file_system_is_an_error_and_nothing_is_lost(small_tmpfs: Callable[[str], Path]) -> None:
    place = small_tmpfs("size=2m")
    cache = Store(place)
    kept = 0
    with pytest.raises(StoreFullError):
        for number in range(100):
            kept += cache.put([(number.to_bytes(16, "big"), bytes([number]) * 50_000)], 1 << 30)
    assert 20 < kept < 45
    assert all(cache.get(number.to_bytes(16, "big")) == bytes([number]) * 50_000 for number in range(kept))
    cache.put([], 0, evict=[number.to_bytes(16, "big") for number in range(10)])
    assert cache.put([(KEY, bytes(10_000))], 1 << 30) == 1
    cache.close()


def test_what_goes_makes_room_for_what_comes_where_there_is_none(small_tmpfs: Callable[[str], Path]) -> None:
    place = small_tmpfs("size=3m")
    cache = Store(place)
    keys = [number.to_bytes(16, "big") for number in range(200)]
    for number in range(20):
        assert cache.put([(keys[number], bytes([number]) * 50_000)], 1_000_000)
    room = os.statvfs(place)
    with (place / "filler").open("wb", buffering=0) as filler:  # all but what the tree itself needs
        filler.write(bytes(room.f_bavail * room.f_frsize - 300_000))
    for number in range(20, 200):
        assert cache.put([(keys[number], bytes([number]) * 50_000)], 1_000_000, evict=[keys[number - 20]]) == 1
    assert cache.stats().payload_bytes == 1_000_000
    cache.close()


def test_a_file_system_that_others_fill(small_tmpfs: Callable[[str], Path]) -> None:
    place = small_tmpfs("size=4m")
    cache = Store(place)
    assert cache.put([(KEY, bytes(50_000))], 1 << 30) == 1
    filler = fill(place)
    with pytest.raises(StoreFullError):
        cache.put([(b"n" * 16, bytes(50_000))], 1 << 30)
    assert cache.get(KEY) == bytes(50_000)
    filler.unlink()
    assert cache.put([(b"n" * 16, bytes(50_000))], 1 << 30) == 1
    cache.close()


def test_writers_killed_at_200_moments(folder: Path) -> None:
    assert not one_after_another(folder, 200, 1)


def test_writers_killed_while_others_write(folder: Path) -> None:
    for number in range(3):
        assert not crowd(folder, 8, 100 * number)
