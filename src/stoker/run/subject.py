"""A loader that is analysed: which samples it takes, what they are read from, and loaders like it over some of them."""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.utils.data

from stoker.cache import intercept
from stoker.cache.cached import Cache
from stoker.cache.intercept import FileReads
from stoker.errors import CommandError
from stoker.feed.carrier import WorkersIter
from stoker.feed.progress import index_sampler, is_batched
from stoker.measure import files
from stoker.order import length_of
from stoker.plan import Plan
from stoker.source.files import Files
from stoker.tensor.dataset import Dataset, of_stoker
from stoker.tensor.seeding import draws_from_globals, takes_rng
from stoker.torch.loader import DataLoader

_PROBES = 8
_RECORDING_S = 10.0
_FILLING = 16
_INNER = ("batch_sampler", "sampler", "base_sampler")
"""Where samplers keep the one that they are put round."""
_NESTED = 8

SampleIds = list[int]


class Subject:
    """A loader under analysis, with its dataset and storage."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.is_stream = isinstance(self.dataset, torch.utils.data.IterableDataset)
        self.workers = int(loader.num_workers)
        self.prefetch = int(loader.prefetch_factor or 2) if self.workers else 0
        self._indices = None if self.is_stream else _cycle(index_sampler(loader))
        self._storage: _Storage | None = None
        self._draws: bool | None = None
        self.first: Any = None
        """What the dataset is asked for first: a sample, or a whole batch."""
        self._some: SampleIds = []
        self._cached_dataset: Any = None
        self._cache: Cache | None = None

    @property
    def length(self) -> int:
        """How many samples the dataset has; 0 where it does not say."""
        return length_of(self.dataset) or 0

    def batches(self, count: int) -> list[Any]:
        """The next batches of the loader's own sampler, epoch after epoch: lists of indices, or single ones."""
        assert self._indices is not None
        found = list(itertools.islice(self._indices, count))
        if not found:
            raise CommandError("the training loader gives no batches")
        self.first = found[0][0] if is_batched(self.loader) else found[0]
        self._some = sorted({number for batch in found for number in self.samples(batch) if isinstance(number, int)})
        return found

    def samples(self, batch: Any) -> SampleIds:
        """The indices in a batch; a sampler may also give whole batches to a loader that does not collate."""
        return list(batch) if is_batched(self.loader) or isinstance(batch, list | tuple) else [batch]

    @property
    def storage(self) -> "_Storage":
        """What samples are read from."""
        if self._storage is None:
            if not self.length or not isinstance(self.first, int):
                self._storage = _Storage("the dataset is not asked for single samples by their numbers")
            else:
                self._storage = _storage_of(self.dataset, self._some)
        return self._storage

    def over(self, batches: Iterable[Any], workers: int, kind: str | None = None, *, cached: bool = False) -> Any:
        """An iterator over some batches with so many workers. In all else it is like the loader's own."""
        return self._clone(batches, workers, kind, cached=cached)._iterate()

    def on_device(self, batches: Iterable[Any], part: str) -> Any:
        """A loader over some batches that leaves a part of preparing to the device."""
        return self._clone(batches, self.workers, None, cached=True, prep=part)

    def offloaded(self, batches: Iterable[Any], address: str) -> Any:
        """A loader over some batches that workers on other hosts prepare, too, as many as they can."""
        return self._clone(batches, max(1, self.workers), "processes", cached=False, offload=address)

    def _clone(
        self,
        batches: Iterable[Any],
        workers: int,
        kind: str | None,
        *,
        cached: bool,
        offload: str | None = None,
        prep: str | None = None,
    ) -> Any:
        loader = self.loader
        dataset = self._cached_dataset if cached and self._cached_dataset is not None else self.dataset
        order: dict[str, Any] = (
            {"batch_sampler": batches} if is_batched(loader) else {"batch_size": None, "sampler": batches}
        )
        if workers:
            order |= {"prefetch_factor": self.prefetch or 2, "multiprocessing_context": loader.multiprocessing_context}
        seed = 0 if loader.seed is None and offload is not None else loader.seed
        return DataLoader(
            dataset,
            **order,
            num_workers=workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
            workers=(kind or loader.workers) if workers else "processes",
            seed=seed,
            offload=offload,
            prep=prep or loader.prep,
            plan=Plan(offload_ratio=1.0),
        )

    def keep(self, ids: SampleIds) -> None:
        """Put samples into a cache of ours. For a source whose bytes the kernel does not cache."""
        size = int(1.1 * self.storage.bytes(ids)) + (1 << 20)
        self._cache = Cache("an analysis", size, is_private=True)
        self._cached_dataset = self.dataset.with_cache(self._cache)
        with ThreadPoolExecutor(_FILLING) as pool:
            list(pool.map(lambda number: self._cached_dataset.fetch([number]), ids))

    def close(self) -> None:
        """Remove the cache of `keep`: nothing more is measured."""
        if self._cache is not None:
            self._cache.close()

    def cached_readers(self, ids: SampleIds) -> list[Callable[[], object]]:
        """What reads each sample from where it is cached."""
        dataset = self._cached_dataset
        if dataset is None:
            return self.storage.readers(ids)
        return [lambda number=number: dataset.fetch([number]) for number in ids]  # type: ignore[misc]

    @property
    def can_use_threads(self) -> bool:
        """Whether threads would give the same results: nothing is drawn from generators that all threads share."""
        if self._draws is None:
            self._draws = not takes_rng(self.dataset) and draws_from_globals(lambda: self.dataset[self.first])
        return not self._draws


def shuffles(loader: Any) -> bool:
    """Whether a loader gives its samples in random order, as for training. Samplers inside samplers are looked at, too."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return False
    sampler, seen = index_sampler(loader), 0
    while seen < _NESTED:
        if bool(getattr(sampler, "shuffle", False)):
            return True
        inner = next((found for name in _INNER if (found := getattr(sampler, name, None)) is not None), None)
        if inner is None:
            break
        sampler, seen = inner, seen + 1
    return not isinstance(sampler, torch.utils.data.SequentialSampler | range | list) and getattr(sampler, "shuffle", True)


def close_iterator(iterator: Any) -> None:
    """End the workers of an iterator that has some."""
    if isinstance(iterator, WorkersIter):
        iterator.close()


def _cycle(sampler: Any) -> Iterator[Any]:
    """Epoch after epoch, until one has nothing in it."""
    is_empty = False
    while not is_empty:
        is_empty = True
        for index in sampler:
            is_empty = False
            yield index


class _Storage:
    """Where samples lie. `why` says why they cannot be made cold, or why this is not known."""

    def __init__(self, why: str = "", source: Any = None) -> None:
        self.why = why
        self.source = source

    def paths(self, ids: SampleIds) -> list[list[str]]:
        """The files of each sample."""
        return [[] for _ in ids]

    @property
    def is_known(self) -> bool:
        """Whether reading can be told from preparing."""
        return not self.why

    @property
    def is_files(self) -> bool:
        """Whether the kernel keeps copies, which can be dropped."""
        return False

    @property
    def is_listed(self) -> bool:
        """Whether the files of all samples are known without making any."""
        return False

    def readers(self, ids: SampleIds) -> list[Callable[[], object]]:
        """What reads each sample, and does nothing else."""
        source = self.source
        return [lambda number=number: source.read([number]) for number in ids]  # type: ignore[misc]

    def bytes(self, ids: SampleIds) -> int:
        """The bytes of some samples."""
        return sum(self.source.sizes(ids)) if self.source is not None else 0


class _InFiles(_Storage):
    def __init__(self, find: Callable[[int], list[str]]) -> None:
        super().__init__()
        self._find = find

    def paths(self, ids: SampleIds) -> list[list[str]]:
        return [self._find(number) for number in ids]

    @property
    def is_files(self) -> bool:
        return True

    @property
    def is_listed(self) -> bool:
        return not isinstance(self._find, _Recorded)

    def readers(self, ids: SampleIds) -> list[Callable[[], object]]:
        return [files.reader_of(paths) for paths in self.paths(ids)]

    def bytes(self, ids: SampleIds) -> int:
        return files.sizes(path for paths in self.paths(ids) for path in paths)


def _storage_of(dataset: Any, some: SampleIds) -> _Storage:
    """What the samples lie in, found out by reading some of those that the loader gives."""
    ours = of_stoker(dataset)
    if isinstance(ours, Dataset) and ours is dataset:
        if isinstance(ours.source, Files):
            paths = ours.source.paths
            return _InFiles(lambda number: [paths[number]])
        return _Storage(source=ours.source)
    probes = random.Random(0).sample(some, min(_PROBES, len(some)))
    recorded = {number: _record(dataset, number) for number in probes}
    if not any(recorded.values()):
        guess = _listed(dataset, {})
        if guess is None:
            return _Storage("the dataset opens no files from Python, and its attributes name none for each sample")
        return _InFiles(guess)
    return _InFiles(_listed(dataset, recorded) or _Recorded(dataset, recorded))


class _Recorder(FileReads):
    """Notes which files are opened, and lets them be opened normally."""

    def __init__(self) -> None:
        self.cache = None  # type: ignore[assignment]
        self.seen: list[str] = []

    def opened(self, name: Any) -> None:
        if not isinstance(name, int):
            text = os.path.abspath(os.fsdecode(name))
            if os.path.isfile(text) and not intercept.is_never(text) and text not in self.seen:
                self.seen.append(text)


def _record(dataset: Any, number: int) -> list[str]:
    recorder = _Recorder()
    with intercept.active(recorder):
        dataset[number]
    return recorder.seen


class _Recorded:
    """Files that were seen to be opened when a sample was made. Asking for one that is not known makes it."""

    def __init__(self, dataset: Any, known: dict[int, list[str]]) -> None:
        self._dataset = dataset
        self._known = known
        self._left_s = _RECORDING_S

    def __call__(self, number: int) -> list[str]:
        if number not in self._known:
            began = time.monotonic()
            self._known[number] = _record(self._dataset, number) if self._left_s > 0 else []
            self._left_s -= time.monotonic() - began
        return self._known[number]


def _listed(dataset: Any, recorded: dict[int, list[str]]) -> Callable[[int], list[str]] | None:
    """A list among the attributes whose elements are the paths, or end them; checked against what was recorded."""
    if type(dataset) is torch.utils.data.Subset:
        indices = dataset.indices
        inner = _listed(dataset.dataset, {indices[number]: paths for number, paths in recorded.items()})
        return None if inner is None else lambda number: inner(indices[number])
    probes = recorded or dict.fromkeys(range(0, len(dataset), max(1, len(dataset) // _PROBES)), None)
    for values in vars(dataset).values():
        if not hasattr(values, "__len__") or not hasattr(values, "__getitem__") or isinstance(values, dict | str | bytes):
            continue
        try:
            if len(values) != len(dataset):
                continue
            prefixes = {_prefix(_text(values[number]), paths) for number, paths in probes.items()}
        except Exception:  # an attribute may raise anything
            continue
        if len(prefixes) == 1 and (prefix := prefixes.pop()) is not None:
            return lambda number, values=values, prefix=prefix: [prefix + (_text(values[number]) or "")]  # type: ignore[misc]
    return None


def _text(element: Any) -> str | None:
    if isinstance(element, str | Path):
        return os.fspath(element)
    if isinstance(element, tuple | list) and element:
        return next((os.fspath(part) for part in element if isinstance(part, str | Path)), None)
    return None


def _prefix(text: str | None, paths: list[str] | None) -> str | None:
    """The part of the recorded path before a text; None if the path does not end with the text."""
    if not text:
        return None
    if paths is None:
        return "" if os.path.isfile(text) else None
    if len(paths) != 1:
        return None
    if os.path.abspath(text) == paths[0]:
        return "" if os.path.isabs(text) else paths[0][: -len(text)] if paths[0].endswith(text) else None
    return paths[0][: -len(text)] if paths[0].endswith(text) else None
