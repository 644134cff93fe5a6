"""Where the samples of a loader are fetched from: storage as it is, files through a cache, or a dataset of ours.

Each loader has one `Caching`. It is sent to the workers, prepares them, and hands over their counts.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from stoker.cache import intercept, staging
from stoker.cache.cached import Cache
from stoker.cache.intercept import FileReads
from stoker.cache.roots import roots_of
from stoker.cache.staging import Staging
from stoker.cache.steering import Steering
from stoker.errors import warn
from stoker.keeper.asking import Asking
from stoker.meter import Counts, Meter, Tally
from stoker.order import Ids
from stoker.tensor.dataset import expecting, of_stoker

_AS_IT_IS = contextlib.nullcontext()


class Caching:
    """How a loader's samples are fetched."""

    def __init__(self, loader: Any) -> None:
        dataset = loader.dataset
        ours = of_stoker(dataset)
        self.reads: FileReads | None = None
        if loader.cache is not None and (ours is None or not ours.has_cache):
            roots = roots_of(dataset) if ours is None else ()
            name = ", ".join(roots) if ours is None else ours.cache_name
            if roots == ("/",):
                name = f"files of {type(dataset).__module__}.{type(dataset).__qualname__}"
            is_private = ours is not None and (ours.is_private or loader.cache_policy != "keep-first")
            is_ruled = bool(loader.peers) and loader.cache_policy == "reuse-distance"
            if loader.peers:  # files have other names there
                name += " (of several hosts, by reuse)" if is_ruled else " (of several hosts)"
            cache = Cache(name, loader.cache, loader.cache_dir, is_private=is_private, disk=loader.cache_disk)
            ask = Asking(cache.folder) if loader.peers and cache.folder is not None else None
            shared_roots = ours.shared_roots if ours is not None and loader.peers else ()
            self.reads = FileReads(cache, roots, ask, is_ruled=is_ruled, shared_roots=shared_roots)
        self._cache = self.reads.cache if self.reads is not None else ours.cache if ours is not None else None
        self.staging: Staging | None = None
        """What is read ahead for this loader, if anything."""
        self._steering: Steering | None = None
        # A plan may give a cache to a loader that did not ask for one. If its data is in memory, that needs no warning.
        self._intercepts = ours is None and not loader._options.is_cache_planned
        self._expect = expecting(dataset)
        self._tally: Tally | None = None
        if self.reads is not None:
            self._tally = self.reads.cache.tally
        elif ours is not None:
            self._tally = ours.tally
        self._has_warned = False

    def begin(self) -> Callable[[Any], None] | None:
        """Prepare a worker process to fetch this way. Returns a function to call with indices of new orders, or None."""
        self.take()
        if self.reads is not None:
            intercept.activate(self.reads)
        if self.staging is not None:
            staging.activate(self.staging)
        return None if self._expect is None else self._foresee

    def _foresee(self, ids: Any) -> None:
        if isinstance(ids, list) and self._expect is not None:
            with contextlib.suppress(Exception):  # reading the sample raises it again
                self._expect(ids)

    def steering(self, loader: Any, own: Callable[[int], Ids] | None, world: int) -> Steering | None:
        """What decides on the cache's contents before samples are read; None for keep-first, which needs no decisions."""
        if self.reads is None or loader.cache_policy == "keep-first" or loader.peers:
            return None
        if self._steering is None:
            sizes = loader.dataset.source.sizes
            self._steering = Steering(loader.cache_policy, loader.cache, sizes, own, world)
        self._steering.follow(own)
        return self._steering

    def active(self) -> contextlib.AbstractContextManager[None]:
        """In the training process: this thread fetches this way within the context."""
        if self.reads is None and self.staging is None and not staging.is_active():
            return _AS_IT_IS
        return self._active()

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        with intercept.active(self.reads), staging.active(self.staging):
            yield

    @property
    def cache(self) -> Cache | None:
        """The loader's cache, or its dataset's own."""
        return self._cache

    def take(self) -> Counts | None:
        """What was counted in this process since the last call; None if nothing is counted."""
        return None if self._tally is None else self._tally.take()

    def damage(self) -> str:
        """What is wrong with the cache's store, to explain a worker's death by a signal; "" if nothing is."""
        return "" if self._cache is None else self._cache.damage()

    def warn_if_useless(self, meter: Meter) -> None:
        """At the end of an epoch: warn once if no file came through the cache."""
        if self.reads is None or not self._intercepts or self._has_warned:
            return
        if meter.hits + meter.misses + meter.hits_peer + meter.faults:
            return
        self._has_warned = True
        warn(
            "the cache has seen no file: the dataset opens none from Python, or not below the folders that its attributes "
            f"name ({self.reads.cache.name}). Libraries that open paths in C (OpenCV, HDF5, decord) are not seen; "
            "stoker.Dataset, which reads the bytes itself, works with them."
        )

    def close(self) -> None:
        """Close the cache: the loader does not need it any more."""
        if self.reads is not None:
            self.reads.cache.close()
