"""`stoker.DataLoader`: torch's DataLoader, at the speed of the hardware.

The class adds nothing to what a loader means. It decides who makes the batches: our iterators, or torch's own when
`STOKER_DISABLE=1` is set, the system is not Linux, or torch is one that ours do not fit.
"""

import inspect
import os
import platform
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch.utils.data

from stoker.errors import ConfigError
from stoker.internals import expected
from stoker.meter import LoaderStats, Meter, Scalars
from stoker.plan import Plan
from stoker.torch.progress import Itinerary, Progress, TorchItinerary

if TYPE_CHECKING:
    from stoker.internals.names import BaseIterator
    from stoker.live.record import Record
    from stoker.torch.caching import Caching
    from stoker.torch.grouped import Membership

T_co = TypeVar("T_co", covariant=True)

_POSITIONS = [
    name
    for name, parameter in inspect.signature(torch.utils.data.DataLoader.__init__).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "self"
]
_STAYS_HERE = ("_live", "_spares", "_collate_here", "_caching", "_record", "_scalars", "_member", "_room")


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A drop-in for `torch.utils.data.DataLoader`: the same arguments, batches and errors, sooner.

    Batches from workers arrive as views of shared memory, without a copy. They are yours for as long as you keep them.
    With `seed=n` randomness belongs to the position of a sample in the global order: who prepares a batch, and how many
    workers there are, never changes it, and `state_dict()` goes on exactly where it was taken. With `workers="threads"`
    the workers are threads. With `cache="8GB"` files, or the samples of a `stoker.Dataset`, are kept in memory that all
    processes and jobs of this host share. With `group="name"` every batch is prepared once for all jobs of that name on
    this host. A `plan` fills what is not given explicitly. `stats()` tells what the loader has done; `close()` ends its
    workers at once.
    """

    _given: frozenset[str]
    _told_about_threads = False
    _cache_is_planned = False
    _draws = False
    """Whether a worker has seen the dataset draw from a default generator."""
    _replays = False
    """Whether a resumed epoch without a seed is prepared again from its start, so that augmentations are the same, too."""
    default_plan: ClassVar[Plan] = Plan()
    """For loaders that are given none: `stoker run` sets it."""
    observers: ClassVar[list[Callable[[Any], None]]] = []
    """Called with every loader that is made."""
    wrap_iterator: ClassVar[Callable[[Any, Callable[[], Any]], Any] | None] = None
    """Stands between `iter()` and a loader's own iterator, if set."""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Remember what was given explicitly: a plan does not overrule it."""
        self = super().__new__(cls)
        self.__dict__["_given"] = frozenset([*_POSITIONS[: len(arguments)], *named])
        return self

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: torch.utils.data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: torch.utils.data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[T_co]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        workers: str = "processes",
        seed: int | None = None,
        cache: int | str | None = None,
        cache_policy: str = "keep-first",
        cache_dir: str | os.PathLike[str] | None = None,
        group: str | None = None,
        group_bytes: int | str | None = None,
        group_patience_s: float | None = None,
        plan: Plan | str | os.PathLike[str] | None = None,
    ) -> None:
        self.plan = plan
        planned = self.default_plan if plan is None else plan if isinstance(plan, Plan) else Plan.load(plan)
        if _is_wanted() and expected.difference() is not None:
            expected.fall_back(_ours(seed, group, workers, cache))
            planned = replace(planned, workers=None, cache_bytes=None, group=None)
        # Both what was not given, and what is as if it were not: a subclass may have passed it on. A stream means something
        # else with another number of workers.
        streams = isinstance(dataset, torch.utils.data.IterableDataset)
        if planned.workers is not None and "workers" not in self._given and workers == "processes" and not streams:
            workers = planned.workers
        if planned.num_workers is not None and "num_workers" not in self._given and num_workers == 0 and not streams:
            num_workers = planned.num_workers
        if planned.prefetch_factor is not None and "prefetch_factor" not in self._given and prefetch_factor is None:
            prefetch_factor = planned.prefetch_factor if num_workers else None
        if planned.cache_bytes is not None and "cache" not in self._given and cache is None:
            self._cache_is_planned = True
            cache, cache_dir = planned.cache_bytes, planned.cache_dir if cache_dir is None else cache_dir
            if planned.cache_policy is not None and seed is not None and hasattr(dataset, "cache_name"):
                cache_policy = planned.cache_policy
        if workers not in ("processes", "threads"):
            raise ConfigError(f"workers must be 'processes' or 'threads', not {workers!r}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ConfigError(f"seed must be a whole number or None, not {seed!r}")
        self.cache, self.cache_policy, self.cache_dir = cache, cache_policy, cache_dir
        if planned.group is not None and "group" not in self._given and group is None and not streams:
            group = planned.group
        self.workers = workers
        self.seed = seed
        self.group, self.group_bytes, self.group_patience_s = group, group_bytes, group_patience_s
        if (cache is not None or cache_policy != "keep-first") and _is_enabled():
            from stoker.torch.caching import check

            check(self, dataset)
        if group is not None and _is_enabled():
            from stoker.torch.grouped import check as check_group

            check_group(self, dataset)
        self._meter = Meter()
        self._progress = Progress()
        self._skip_batches = 0
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self.cache is not None and _is_enabled():
            _ = self.caching  # so that what cannot be held is refused here
        if self.group is not None and _is_enabled():
            _ = self._membership  # a job joins when its loader is made
        for observe in self.observers:
            observe(self)

    def __iter__(self) -> "BaseIterator":
        if self.wrap_iterator is not None:
            return type(self).wrap_iterator(self, self._iterate)  # type: ignore[misc, no-any-return]
        return self._iterate()

    def _iterate(self) -> "BaseIterator":
        if self.group is not None and _is_enabled():
            from stoker.torch.grouped import GroupIter

            return GroupIter(self, self._membership)
        if self._by_position or not _is_enabled():
            return super().__iter__()
        itinerary = TorchItinerary(self)
        resumed = self._progress.resumes
        before = torch.get_rng_state() if resumed and itinerary.seeds_by_default else None
        self._progress.begin(itinerary)
        seen, replays = self._progress.batches, self._replays and self.num_workers > 0
        if isinstance(self.dataset, torch.utils.data.IterableDataset):
            replays = True
        self._skip_batches = 0 if replays else seen
        iterator = super().__iter__()
        if seen:
            _go_on(iterator, seen if replays else 0)
            self._skip_batches = 0
        if before is not None:
            torch.set_rng_state(before)  # what the epoch drew was drawn when it began
        return iterator

    @property
    def _by_position(self) -> bool:
        """Whether randomness belongs to positions: there is a seed, and there are positions."""
        return self.seed is not None and not isinstance(self.dataset, torch.utils.data.IterableDataset)

    def _get_iterator(self) -> "BaseIterator":
        if not _is_enabled():
            return super()._get_iterator()
        from stoker.torch.iterators import make_iterator  # not at the top: on other systems it cannot even be imported

        return make_iterator(self)  # type: ignore[no-any-return]

    @property
    def _membership(self) -> "Membership":
        """This loader's seat in its group, in this process."""
        from stoker.torch.grouped import Membership

        found = self.__dict__.get("_member")
        if found is None or not found.seat.is_ours:
            found = self.__dict__["_member"] = Membership(self)
        return found

    @property
    def caching(self) -> "Caching":
        """Where samples are fetched from, and what is known of it."""
        from stoker.torch.caching import Caching

        found = self.__dict__.get("_caching")
        if found is None:
            found = self.__dict__["_caching"] = Caching(self)
        return found

    @property
    def _published(self) -> "Record | None":
        """Where `stoker top` sees what this loader does in this process; None where nobody shall."""
        from stoker.torch.publishing import publish_loader

        found = self.__dict__.get("_record")
        if "_record" not in self.__dict__ or (found is not None and found.owner != os.getpid()):
            found = self.__dict__["_record"] = publish_loader(self)
        return found

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next `iter()` is; otherwise it is the number of `iter()` calls before."""
        self._progress.set_epoch(epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop is, in JSON's terms. What was prepared ahead and not yet seen is not counted."""
        return self._progress.state(self._itinerary(), self.seed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state at the next `iter()`. One of another dataset, order or version is refused."""
        if state.get("_num_yielded") and _is_wanted() and expected.difference() is not None:
            expected.refuse("going on from the middle of an epoch", "or begin the epoch anew")
        self._progress.load(state, self._itinerary(), self.seed)
        if self.group is not None and _is_enabled():
            self._membership.seat.restore((state["epoch"], state["_num_yielded"]))

    def _itinerary(self) -> Itinerary:
        if self._by_position:
            from stoker.torch.course import recognise

            assert self.seed is not None
            return recognise(self, self.seed)
        return TorchItinerary(self)

    def stats(self) -> LoaderStats:
        """What this loader has done since it was made, over all its iterators."""
        member = self.__dict__.get("_member")
        return self._meter.stats() if member is None else replace(self._meter.stats(), group=member.stats())

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """What happened since the last call, for loggers: `waiting_pct` of the time, `samples_per_s`, and more.

        `writer.add_scalars("loader", loader.scalars(), step)` for TensorBoard, `run.log(loader.scalars("loader/"))` for
        Weights & Biases. The first call tells of all since the first `iter()`.
        """
        found = self.__dict__.get("_scalars")
        if found is None:
            found = self.__dict__["_scalars"] = Scalars([self._meter])
        return found.take(prefix)

    def close(self) -> None:
        """End all workers and give all memory back now. Batches that you hold stay valid; a new `iter()` starts anew."""
        self._iterator = None
        member = self.__dict__.pop("_member", None)
        if member is not None:
            member.close()
        self.__dict__.pop("_room", None)
        for iterator in list(self.__dict__.get("_live", ())):
            iterator.close()
        self.__dict__.pop("_collate_here", None)
        record = self.__dict__.pop("_record", None)
        if record is not None:
            record.close()
        caching = self.__dict__.pop("_caching", None)
        if caching is not None:
            caching.close()
        for inbox in self.__dict__.pop("_spares", ()):
            inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but iterators and memory, so that a loader can be pickled and copied at any time."""
        return {name: value for name, value in self.__dict__.items() if name not in _STAYS_HERE}


def _go_on(iterator: Any, replayed: int) -> None:
    """Pass by what a resumed loop has seen already: by its indices, or by preparing it again."""
    if replayed:
        progress = iterator._progress
        batches, samples = progress.batches, progress.samples
        for _ in range(replayed):
            next(iterator, None)
        progress.batches, progress.samples, progress.ended = batches, samples, False
    while iterator._skip:
        next(iterator._sampler_iter)
        iterator._skip -= 1


def _ours(seed: object, group: object, workers: str, cache: object) -> list[str]:
    """What a loader is asked for that torch's own cannot do."""
    asked = {"seed=": seed is not None, "group=": group is not None, "cache=": cache is not None}
    return [name for name, is_asked in (asked | {"workers='threads'": workers == "threads"}).items() if is_asked]


def _is_enabled() -> bool:
    return _is_wanted() and expected.difference() is None


def _is_wanted() -> bool:
    if os.environ.get("STOKER_DISABLE", "0") not in ("", "0"):
        return False
    if platform.system() == "Linux":
        return True
    warnings.warn("stoker.DataLoader works on Linux; here it behaves as torch's own", stacklevel=5)
    return False
