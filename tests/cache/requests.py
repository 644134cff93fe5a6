"""Items for tests of the cache: number n has bytes that tell its number."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stoker.cache.cached import Cache


class Numbered:
    """A request for numbered items, which counts what is read from `storage`."""

    def __init__(self, ids: Sequence[int], size: int = 1000, log: Path | None = None) -> None:
        self.ids = list(ids)
        self.keys = [number.to_bytes(16, "little") for number in self.ids]
        self.size = size
        self.log = log

    def payload(self, number: int) -> bytes:
        return number.to_bytes(8, "little") * (self.size // 8)

    def sizes(self, positions: list[int]) -> list[int]:
        return [self.size] * len(positions)

    def read(self, positions: list[int]) -> list[bytes]:
        if self.log is not None:
            with self.log.open("a") as log:
                log.write("".join(f"{self.ids[position]}\n" for position in positions))
        return [self.payload(self.ids[position]) for position in positions]

    def is_settled(self, position: int) -> bool:
        return True

    def kept(self, positions: list[int]) -> None:
        pass


def run_epochs(
    directory: Path, capacity: int, seeds: Sequence[int], items: int, log: Path | None = None
) -> list[tuple[int, int, int, int]]:
    """Read all items once in each epoch, in an order that its seed gives; the counts of each epoch."""
    cache = Cache("numbers", capacity, directory)
    counted = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(items).tolist()
        for start in range(0, items, 16):
            request = Numbered(order[start : start + 16], log=log)
            assert cache.fetch(request) == [request.payload(number) for number in request.ids]
        hits, misses, bytes_cache, bytes_storage, _, faults, fault = cache.tally.take()[:7]
        assert not faults, fault
        counted.append((hits, misses, bytes_cache, bytes_storage))
    return counted


def fill(place: Path) -> Path:
    """Fill a file system to its last page; the file that does it."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass
    return filler
