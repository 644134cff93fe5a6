"""What do checksums cost those who read from the cache?

The same items by `Store.get` as it is, and as it would be if nothing were checked: neither the bytes nor the length of the
file. Microseconds of processor time for single items on tmpfs and on a disk (which is in the page cache),
then a JPEG file that is decoded and cropped by a loader's dataset. `ratio` is the time without against the time with.
Last, the candidates on bare bytes.
"""

import os
import random
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import harness
import stoker
from cache_access import Items, each_us, key, opened_store
from cache_prep import prepare
from stoker.cache.cached import Cache
from stoker.cache.store import Store
from stoker.sealed import payload_bytes
from workloads import jpeg

SIZES = {2_000: 4_000, 100_000: 800, 8_000_000: 20}
PICTURES = 256
PLACES = {"tmpfs": "/dev/shm", "disk": "/var/tmp"}


def unchecked(store: Store, name: bytes) -> bytes | None:
    """What `Store.get` would be."""
    with store.lock, store._environment.begin(buffers=True) as transaction:
        found = transaction.get(name)
        return None if found is None else bytes(found[: payload_bytes(len(found))])


def singles(place: str, size: int, count: int, rounds: int) -> None:
    """Items of one size, in one place."""
    payload, order = os.urandom(size), random.Random(0).sample(range(count), count)
    with tempfile.TemporaryDirectory(dir=PLACES[place]) as folder:
        cache = Cache("items", 1 << 30, folder)
        cache.fetch(Items(range(count), payload))
        store, keys = opened_store(cache), [key(number) for number in order]
        contenders: dict[str, Callable[[], float]] = {
            "without": partial(each_us, partial(unchecked, store), keys),
            "with": partial(each_us, store.get, keys),
        }
        outcome = harness.alternate(contenders, rounds)
        cache.close()
    question = f"microseconds for an item of {size:,} bytes, {place}"
    harness.report(question, ratio=outcome.ratio("without", "with"), us=outcome.medians())


def pictures(rounds: int) -> None:
    """A whole sample, with its preparation, through the loader."""
    checked = Store.get
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as shelf:
        for number in range(PICTURES):
            (Path(folder) / f"{number:04}.jpg").write_bytes(jpeg(number))
            os.utime(Path(folder) / f"{number:04}.jpg", (1, 1))
        dataset = stoker.Dataset(folder, prepare, cache="1GB", cache_dir=shelf)
        loader = stoker.DataLoader(dataset, 32)

        def epoch(get: Any) -> float:
            Store.get = get  # type: ignore[method-assign]
            began = time.process_time()
            for _ in loader:
                pass
            return (time.process_time() - began) / PICTURES * 1e6

        outcome = harness.alternate({"without": partial(epoch, unchecked), "with": partial(epoch, checked)}, rounds)
        Store.get = checked  # type: ignore[method-assign]
        stats = loader.stats()
        assert stats.misses == PICTURES and not stats.cache_faults
        loader.close()
    question = "microseconds for a cached JPEG sample through the loader"
    harness.report(question, ratio=outcome.ratio("without", "with"), us=outcome.medians())


def candidates(rounds: int) -> None:
    """Checksums of bare bytes; those whose library is not installed are left out."""
    functions: dict[str, Any] = {"zlib.crc32": zlib.crc32, "a copy": bytearray}
    for module, name in (("xxhash", "xxh3_64_intdigest"), ("google_crc32c", "value")):
        try:
            functions[f"{module}.{name}"] = getattr(import_module(module), name)
        except ImportError:
            continue
    for size, count in SIZES.items():
        payload = os.urandom(size)
        contenders: dict[str, Callable[[], float]] = {
            name: partial(each_us, function, [payload] * count) for name, function in functions.items()
        }
        outcome = harness.alternate(contenders, rounds)
        ratio = outcome.ratio("a copy", "xxhash.xxh3_64_intdigest")
        harness.report(f"microseconds for a checksum of {size:,} bytes", ratio=ratio, us=outcome.medians())


def main() -> None:
    rounds = harness.rounds()
    for place in PLACES:
        for size, count in SIZES.items():
            singles(place, size, count, rounds)
    pictures(rounds)
    candidates(rounds)


if __name__ == "__main__":
    main()
