"""Damage to the store of a cache, and runs that have to bear it."""

import faulthandler
import os
import random
import shutil
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cache.requests import Numbered

from stoker.cache import stores
from stoker.cache.cached import Cache
from stoker.cache.wanted import Ruling

ITEMS, ROOM = 240, 4_000_000
PAGE = 4096
BRANCH, LEAF, META = 1, 2, 8


class Mixed(Numbered):
    """Numbered items of many sizes: some lie together in a page, some have many pages."""

    def payload(self, number: int) -> bytes:
        return number.to_bytes(8, "little") * (1 + (7, 40, 180, 600, 2500)[number % 5] + number % 13)

    def sizes(self, positions: list[int]) -> list[int]:
        return [len(self.payload(self.ids[position])) for position in positions]


def fetch_all(cache: Cache, first: int = 0, stop: int = ITEMS, advice: Ruling | None = None) -> None:
    """Read items, and compare every byte."""
    for start in range(first, stop, 16):
        request = Mixed(range(start, min(start + 16, stop)))
        assert cache.fetch(request, advice) == [request.payload(number) for number in request.ids]


def filled(place: Path) -> Path:
    """A cache that nobody uses, in which things have come and gone."""
    cache = Cache("numbers", ROOM, place)
    fetch_all(cache, ITEMS, 2 * ITEMS)
    keys = Mixed(range(ITEMS, 2 * ITEMS)).keys
    fetch_all(cache, 0, 16, Ruling(range(16), keys[: ITEMS // 2]))
    fetch_all(cache, 16, 32, Ruling(range(16), keys[ITEMS // 2 :]))
    fetch_all(cache)
    folder = cache.folder
    assert folder is not None
    cache.close()
    stores.forget(folder)
    return folder


def truncate(folder: Path, rng: random.Random) -> None:
    size = (folder / "data.mdb").stat().st_size
    length = rng.choice([rng.randrange(size), rng.randrange(size // PAGE) * PAGE, rng.randrange(5 * PAGE)])
    os.truncate(folder / "data.mdb", length)


def flip(folder: Path, rng: random.Random) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(rng.choice([1, 1, 3, 30])):
            # Half of them in the first bytes of a page, where the tree has its numbers.
            place = rng.choice([rng.randrange(size), rng.randrange(size // PAGE) * PAGE + rng.randrange(64)])
            byte = os.pread(file.fileno(), 1, place)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), place)


def zero(folder: Path, rng: random.Random) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(rng.choice([1, 1, 4])):
            os.pwrite(file.fileno(), bytes(PAGE), rng.randrange(size // PAGE) * PAGE)


def exchange(folder: Path, rng: random.Random) -> None:
    """Two pages change places, as a faulty disk does it."""
    with (folder / "data.mdb").open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        one, other = (rng.randrange(2, size // PAGE) * PAGE for _ in range(2))
        pages = [os.pread(file.fileno(), PAGE, place) for place in (one, other)]
        os.pwrite(file.fileno(), pages[1], one)
        os.pwrite(file.fileno(), pages[0], other)


def remove(folder: Path, rng: random.Random) -> None:
    path = folder / rng.choice(["data.mdb", "lock.mdb", "claims", "about.json", "jobs"])
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def scribble(folder: Path, rng: random.Random) -> None:
    path = folder / rng.choice(["data.mdb", "lock.mdb", "claims", "about.json"])
    path.write_bytes(rng.randbytes(rng.choice([0, 10, 5000, 100_000])))


def make_values_endless(folder: Path) -> None:
    """Let all values that have pages of their own seem to go on far beyond the end of the file."""
    with (folder / "data.mdb").open("r+b") as file:
        for page in range(0, os.fstat(file.fileno()).st_size, PAGE):
            flags, free = struct.unpack("<HH", os.pread(file.fileno(), 4, page + 10))
            if flags != LEAF:
                continue
            for place in range(16, free, 2):
                node = page + int.from_bytes(os.pread(file.fileno(), 2, page + place), "little")
                if os.pread(file.fileno(), 1, node + 4) == b"\x01":
                    os.pwrite(file.fileno(), (0x70000000).to_bytes(4, "little"), node)


WAYS: list[Callable[[Path, random.Random], None]] = [truncate, flip, flip, zero, exchange, remove, scribble]


def bear(place: Path) -> tuple[int, int]:
    """A run over a damaged cache: everything is read twice, and things come and go. What it missed, and the faults."""
    cache = Cache("numbers", ROOM, place)
    fetch_all(cache)
    hits, misses, *_, faults, _ = cache.tally.take()[:7]
    assert hits + misses == ITEMS
    fetch_all(cache, ITEMS, 2 * ITEMS)
    fetch_all(cache, 0, 16, Ruling(range(16), Mixed(range(40, 90)).keys))
    fetch_all(cache)
    faults += cache.tally.take()[5]
    cache.close()
    again = Cache("numbers", ROOM, place)
    fetch_all(again)
    assert again.tally.take()[5] == 0, "what was damaged is mended"
    again.close()
    return misses, faults


def damaged_runs(template: Path, place: Path, count: int, seed: int) -> list[str]:
    """Damage a copy of a cache in one way after another, each under a run in a process of its own; what went wrong."""
    wrong = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        copy = place / str(number)
        shutil.copytree(template, copy, symlinks=True)
        (folder,) = (path for path in copy.glob("stoker-*/*") if path.is_dir())
        way = WAYS[number % len(WAYS)]
        way(folder, rng)
        child = os.fork()
        if not child:
            code = 100
            try:
                misses, faults = bear(copy)
                code = 0 if faults or not misses else 101
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            wrong.append(f"{way.__name__} number {number} of seed {seed}: {code}")
        shutil.rmtree(copy)
    return wrong


def cut_and_lengthen(folder: Path, rng: random.Random) -> None:
    """Cut the file, and make it as long as before: zeros take the place of what was there."""
    size = (folder / "data.mdb").stat().st_size
    os.truncate(folder / "data.mdb", rng.randrange(2, size // PAGE) * PAGE)
    os.truncate(folder / "data.mdb", size)


def tear(folder: Path, rng: random.Random) -> None:
    """Write random bytes into half of the pages that the tree consists of."""
    with (folder / "data.mdb").open("r+b") as file:
        for page in range(0, os.fstat(file.fileno()).st_size, PAGE):
            (flags,) = struct.unpack("<H", os.pread(file.fileno(), 2, page + 10))
            if flags in (BRANCH, LEAF, META) and rng.random() < 0.5:
                for _ in range(rng.choice([1, 2, 5])):
                    place = page + rng.choice([rng.randrange(16), rng.randrange(120), rng.randrange(PAGE)])
                    os.pwrite(file.fileno(), rng.randbytes(rng.choice([1, 1, 2, 8])), place)


def overwrite(folder: Path, rng: random.Random) -> None:
    """The store alone: lock.mdb has LMDB's locks in it, as memory has, and a lock that seems to be held is waited for."""
    (folder / "data.mdb").write_bytes(rng.randbytes(rng.choice([0, 10, 5000, 100_000])))


def make_all_values_endless(folder: Path, _: random.Random) -> None:
    make_values_endless(folder)


UNDER_A_JOB: list[Callable[[Path, random.Random], None]] = [
    truncate, cut_and_lengthen, tear, flip, zero, exchange, tear, overwrite, tear, make_all_values_endless,
]  # fmt: skip


def torn_runs(place: Path, numbers: Iterable[int], seed: int) -> list[str]:
    """Damage a store under the process that uses it, in one way after another; what went wrong.

    The process ends with the right bytes, or by a signal with words that name the store. The next one has the right bytes.
    """
    wrong = []
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        way = UNDER_A_JOB[number % len(UNDER_A_JOB)]
        shelf, words = place / str(number), place / f"{number}.words"
        code = _in_a_child(lambda shelf=shelf, way=way, rng=rng: _run_while_torn(shelf, way, rng), words)
        names_it = f"the cache in {shelf}" in words.read_text()
        ends_well = not code or (code in (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT) and names_it)
        again = _in_a_child(lambda shelf=shelf: fetch_all(Cache("numbers", ROOM, shelf)), words)
        if not ends_well or again:
            wrong.append(f"{way.__name__} number {number} of seed {seed}: {code}, then {again}")
        shutil.rmtree(shelf)
    return wrong


def _run_while_torn(shelf: Path, way: Callable[[Path, random.Random], None], rng: random.Random) -> None:
    faulthandler.disable()  # pytest has enabled it, for another file
    cache = Cache("numbers", ROOM, shelf)
    fetch_all(cache)
    assert cache.folder is not None
    way(cache.folder, rng)
    fetch_all(cache)
    fetch_all(cache, ITEMS, 2 * ITEMS, Ruling(range(16), Mixed(range(40, 140)).keys))
    fetch_all(cache)


def _in_a_child(act: Callable[[], None], words: Path) -> int:
    """How a process ends that does something, and writes its words to a file: 0, 1 with an error, or the signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.stderr = words.open("w")
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
