"""`stoker.Dataset`: samples that are fetched as bytes from a source, and then prepared.

It is a plain map-style dataset of torch's, so it works under any loader. It separates fetching from preparing: bytes can
come from a cache, and under our loader a worker asks the source to read ahead for orders that wait.
"""

import contextlib
import copy
import hashlib
import operator
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
import torch.utils.data

from stoker.cache import asked, intercept, staging
from stoker.cache.asked import Ask
from stoker.cache.cached import Cache
from stoker.cache.intercept import FileReads
from stoker.cache.steering import KeptAndForgotten
from stoker.cache.walking import KEY_BYTES
from stoker.cache.wanted import Ruling, read_plainly
from stoker.errors import ConfigError
from stoker.memory import Bytes
from stoker.meter import Tally
from stoker.source.opening import open_source
from stoker.source.reading import Foresighted, Named, Releasing, Shared, Source
from stoker.units import parse_bytes

Prep = Callable[[memoryview, int, np.random.Generator], Any]

_AT_ONCE = 32
"""How many samples are fetched before they are prepared."""


class Dataset(torch.utils.data.Dataset[Any]):
    """Samples of a source: `prep(raw, index, rng)` makes a sample from its bytes.

    `source` is a Source, or what `stoker.open_source` takes: a folder, a glob, tar shards. With `cache="8GB"` the bytes are
    kept in memory that all processes and jobs of this host share. If `prep` draws from `rng` only, a loader with a seed
    gives every sample the same randomness in any worker.
    """

    def __init__(
        self,
        source: Any,
        prep: Prep,
        *,
        cache: int | str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_disk: str | None = None,
    ) -> None:
        if not callable(prep):
            raise ConfigError(f"prep must be a function of (raw, index, rng), not {prep!r}")
        self.source: Source = open_source(source)
        self.prep = prep
        self.is_private = not isinstance(self.source, Named)
        self._names: Named = self.source if isinstance(self.source, Named) else _Numbered()
        self._shared = self.source if isinstance(self.source, Shared) else None
        self._foresighted = self.source if isinstance(self.source, Foresighted) else None
        self._tally = Tally()
        self._cache = None
        if cache is None and cache_disk is not None:
            raise ConfigError("cache_disk= needs cache=: the disk keeps what memory has no room for")
        if cache is not None:
            size = parse_bytes(cache, "cache")
            self._cache = Cache(self._names.name, size, cache_dir, is_private=self.is_private, disk=cache_disk)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def cache_name(self) -> str:
        """The name of a cache of these samples."""
        return self._names.name

    def __likeness__(self) -> dict[str, Any]:
        """What must be equal in all jobs that share batches of this dataset."""
        name = self.source if self.is_private else self._names.name
        return {"source": name, "prep": self.prep}

    @property
    def shared_roots(self) -> tuple[str, ...]:
        """The folder of these samples, if it may lie elsewhere on other hosts."""
        return (self.cache_name,) if self._shared is not None and os.path.isabs(self.cache_name) else ()

    @property
    def has_cache(self) -> bool:
        """Whether this dataset was given a cache of its own. Otherwise the loader's cache is used."""
        return self._cache is not None

    @property
    def cache(self) -> Cache | None:
        """The dataset's own cache."""
        return self._cache

    def with_cache(self, cache: Cache) -> Self:
        """A dataset of the same samples that come through a cache."""
        same = copy.copy(self)
        same._cache = cache
        return same

    @property
    def tally(self) -> Tally:
        """What was fetched in this process."""
        return self._tally if self._cache is None else self._cache.tally

    def _current_cache(self) -> Cache | None:
        if self._cache is not None:
            return self._cache
        reads = intercept.current()
        if reads is None or reads.cache is None or (self.is_private and not reads.cache.is_private):
            return None  # its names of samples mean nothing in other jobs
        return reads.cache

    def fetch(self, ids: Sequence[int]) -> list[Bytes]:
        """The bytes of some samples."""
        cache = self._current_cache()
        ask, names = self._among_hosts()
        wanted = _Wanted(self.source, names, ids)
        if cache is None:
            return read_plainly(wanted, len(ids), self._tally)
        if ask is not None:
            return asked.fetch(cache, ask, wanted)
        return cache.fetch(wanted, self._advice_on(ids))

    def _among_hosts(self) -> tuple[Ask | None, Named]:
        """Whom to ask for what is not in the cache, if that is one of several hosts; and what samples are called there."""
        reads = intercept.current()
        if self._shared is None or self._cache is not None or not isinstance(reads, FileReads) or reads.ask is None:
            return None, self._names
        return reads.ask, _OnAllHosts(self._shared, reads.shared_roots)

    def _advice_on(self, ids: Sequence[int]) -> Ruling | None:
        decided = getattr(_decided, "latest", None)
        if decided is None:
            return None
        kept, evicted = decided
        _decided.latest = kept, ()  # those are forgotten once
        positions = {position for position, number in enumerate(ids) if number in kept}
        return Ruling(positions, [_key(self._names, number) for number in evicted])

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to read samples that will be fetched soon, unless the cache has them."""
        if self._foresighted is None:
            return
        cache, (ask, names) = self._current_cache(), self._among_hosts()
        if ask is not None and staging.current() is not None:
            return  # other hosts may have them: the keeper looks there first
        if cache is not None:
            ids = [number for number in ids if not cache.holds(_key(names, number) + names.version(number))]
        self._foresighted.expect(ids)

    def __getitem__(self, index: int) -> Any:
        return next(self.__getsamples__([index], _drawn_generators()))

    def __getitems__(self, ids: Sequence[int]) -> list[Any]:
        """Several samples, fetched together."""
        return list(self.__getsamples__(ids, _drawn_generators()))

    def __getsample__(self, index: int, rng: np.random.Generator) -> Any:
        """One sample, prepared with a generator to draw from."""
        return next(self.__getsamples__([index], iter([rng])))

    def __getsamples__(self, ids: Sequence[int], generators: Iterator[np.random.Generator]) -> Iterator[Any]:
        """Several samples, one by one as they are prepared, each with its generator."""
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            for raw, index, rng in zip(self.fetch(some), some, generators, strict=False):
                yield self.prep(memoryview(raw), index, rng)


_decided = threading.local()


@contextlib.contextmanager
def advised(decision: KeptAndForgotten | None) -> Iterator[None]:
    """Within this, a policy's decision holds for what this thread fetches: which samples are kept, and which go instead."""
    if decision is None:
        yield
        return
    kept, evicted = decision
    _decided.latest = frozenset(kept), evicted
    try:
        yield
    finally:
        _decided.latest = None


class _Wanted:
    """A request for samples of a source."""

    def __init__(self, source: Source, names: Named, ids: Sequence[int]) -> None:
        self._source, self._names = source, names
        self._ids = [operator.index(number) for number in ids]
        self._settled = getattr(source, "is_settled", None)
        self._keys: list[bytes] | None = None

    @property
    def keys(self) -> list[bytes]:
        if self._keys is None:  # made once, when a cache asks
            self._keys = [_key(self._names, number) + self._names.version(number) for number in self._ids]
        return self._keys

    def sizes(self, positions: list[int]) -> Sequence[int]:
        return self._source.sizes([self._ids[position] for position in positions])

    def read(self, positions: list[int]) -> Sequence[Bytes]:
        return self._source.read([self._ids[position] for position in positions])

    def is_settled(self, position: int) -> bool:
        number = self._ids[position]
        version = self._names.version(number)
        return self.keys[position][KEY_BYTES:] == version and (self._settled is None or self._settled(number))

    def kept(self, positions: list[int]) -> None:
        if isinstance(self._source, Releasing):
            self._source.release([self._ids[position] for position in positions])


def _key(names: Named, number: int) -> bytes:
    """A key of the length that a store needs."""
    key = names.key(number)
    return key if len(key) == KEY_BYTES else hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


class _OnAllHosts:
    """Names for samples that hold on several hosts."""

    def __init__(self, source: Shared, roots: tuple[str, ...]) -> None:
        self.name, self.version = source.name, source.version
        self._source, self._roots = source, roots

    def key(self, number: int) -> bytes:
        return self._source.shared_key(number, self._roots)


class _Numbered:
    """Names for the samples of a source without names. They mean nothing in other jobs."""

    name = "samples by number"

    def __init__(self) -> None:
        self._token = secrets.token_bytes(8)

    def key(self, number: int) -> bytes:
        return self._token + number.to_bytes(8, "big", signed=True)

    def version(self, number: int) -> bytes:
        return b""


def _drawn_generators() -> Iterator[np.random.Generator]:
    """Generators seeded from torch's default one, as all randomness under torch's loader is."""
    while True:
        yield np.random.Generator(np.random.Philox(key=int(torch.empty((), dtype=torch.int64).random_())))


def of_stoker(dataset: Any) -> Dataset | None:
    """The `stoker.Dataset` that a dataset is or wraps; None if there is none."""
    for _ in range(8):
        if isinstance(dataset, Dataset):
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None


def expecting(dataset: Any) -> Callable[[Sequence[int]], None] | None:
    """A function that tells a dataset which samples will be asked for soon; None if the dataset has no use for it."""
    if isinstance(dataset, Dataset):
        return dataset.expect
    if type(dataset) is torch.utils.data.Subset:
        inner, indices = expecting(dataset.dataset), dataset.indices
        if inner is not None:
            return partial(_expect_some, inner, indices)
    return None


def _expect_some(expect: Callable[[Sequence[int]], None], indices: Sequence[int], ids: Sequence[int]) -> None:
    expect([indices[number] for number in ids])
