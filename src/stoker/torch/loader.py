"""`stoker.DataLoader`: torch's DataLoader, at the speed of the hardware.

A loader means the same as torch's. The class decides who makes the batches: our iterators, or torch's own when
`STOKER_DISABLE=1` is set, the system is not Linux, or our iterators do not fit this version of torch.
"""

import copy
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch.utils.data

from stoker.errors import ConfigError
from stoker.feed.foretold import obstacle_to_reuse
from stoker.feed.hooks import HOOKS
from stoker.feed.options import Options, is_enabled, is_wanted
from stoker.feed.progress import Progress, Route, TorchRoute, check_kind
from stoker.feed.resuming import NOTHING, checked_interval, is_torchdatas, resuming_of
from stoker.internals import expected
from stoker.meter import LoaderStats, Meter
from stoker.plan import Plan

if TYPE_CHECKING:
    from stoker.feed.here import Here
    from stoker.internals.names import BaseIterator
    from stoker.tensor.caching import Caching

T_co = TypeVar("T_co", covariant=True)

_POSITIONS = [
    name
    for name, parameter in inspect.signature(torch.utils.data.DataLoader.__init__).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "self"
]


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A drop-in for `torch.utils.data.DataLoader`: the same arguments, batches and errors, sooner.

    Batches from workers arrive as views of shared memory, without a copy. They are yours for as long as you keep them.
    With `seed=n` randomness belongs to the position of a sample in the global order: it does not depend on the number of
    workers or on which of them prepares a batch, and a loop resumed from `state_dict()` goes on exactly where it was. With
    `workers="threads"` the workers are threads. With `cache="8GB"` files, or the samples of a `stoker.Dataset`, are kept
    in memory that all processes and jobs of this host share. With `group="name"` every batch is prepared once for all jobs
    of that name on this host. With `ranks="shared"` the workers of all ranks of this job on this host help each other. With
    `prep="device"` the GPU decodes and prepares pictures, with `prep="tail"` it turns their bytes into numbers. A `plan`
    sets the arguments that are not given. `stats()` tells what the loader has done; `close()` ends its workers.
    """

    _options: Options
    _told_about_threads = _told_about_ranks = _told_about_prep = False
    _draws = False
    """Whether a worker has seen the dataset draw from a default generator."""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Remember which arguments were given: a plan does not overrule them."""
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
        snapshot_every_n_steps: int | None = 1,
        workers: str = "processes",
        seed: int | None = None,
        cache: int | str | None = None,
        cache_policy: str = "keep-first",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_disk: str | None = None,
        group: str | None = None,
        group_bytes: int | str | None = None,
        group_patience_s: float | None = None,
        ranks: str | None = None,
        peers: str | None = None,
        offload: str | None = None,
        prep: str | None = None,
        plan: Plan | str | os.PathLike[str] | None = None,
    ) -> None:
        asked = Options(
            num_workers,
            prefetch_factor,
            workers,
            seed,
            cache,
            cache_policy,
            cache_dir,
            group,
            group_bytes,
            group_patience_s,
            cache_disk=cache_disk,
            ranks=ranks,
            peers=peers,
            offload=offload,
            prep=prep,
            plan=plan,
            given=self.__dict__.pop("_given", frozenset()),
        )
        options = self._options = asked.resolved(dataset, HOOKS.plan)
        # Each argument is an attribute of the same name: frameworks read these to make another loader like this one.
        self.plan, self.workers, self.seed = plan, options.workers, options.seed
        self.cache, self.cache_policy, self.cache_dir = options.cache, options.cache_policy, options.cache_dir
        self.cache_disk = options.cache_disk
        self.group, self.group_bytes = options.group, options.group_bytes
        self.group_patience_s, self.ranks = options.group_patience_s, options.ranks
        self.peers, self.offload, self.prep = options.peers, options.offload, options.prep
        self._owner = os.getpid()
        self._meter = Meter()
        self._progress = Progress()
        self._skip_batches = 0
        self._draws_seed = True
        self.snapshot_every_n_steps = checked_interval(snapshot_every_n_steps)
        self._position: Any = None
        self._resuming = NOTHING
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            options.num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=options.prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self.peers and self.cache_policy == "reuse-distance" and is_enabled():
            obstacle = obstacle_to_reuse(self)
            if obstacle and not options.is_policy_planned:
                raise ConfigError(obstacle)
            self.cache_policy = "keep-first" if obstacle else self.cache_policy
        if self.cache is not None and is_enabled():
            _ = self.here.caching  # so that what cannot be held is refused here
        if self.group is not None and is_enabled():
            _ = self.here.member  # a job joins when its loader is made
        for tell in HOOKS.made:
            tell(self)

    def __iter__(self) -> "BaseIterator":
        if HOOKS.wrap is not None:
            return HOOKS.wrap(self, self._iterate)  # type: ignore[no-any-return]
        return self._iterate()

    def _iterate(self) -> "BaseIterator":
        if self._owner != os.getpid():  # persistent workers belong to the process that started them
            self._iterator, self._owner = None, os.getpid()
        if self.group is not None and is_enabled():
            from stoker.feed.grouped import GroupIter

            return GroupIter(self, self.here.member)
        if self._by_position or not is_enabled():
            return super().__iter__()
        route = TorchRoute(self, keeps_seed=self._iterator is not None)
        resumed = self._progress.resumes
        before = torch.get_rng_state() if resumed and route.seeds_by_default else None
        self._progress.begin(route)
        seen, others, self._position = self._progress.batches, self._progress.others, None
        self._resuming = resuming_of(others, self.num_workers, before, is_fresh=not self._progress.goes_on)
        is_stream = isinstance(self.dataset, torch.utils.data.IterableDataset)
        self._draws_seed = is_stream or not route.keeps_seed
        replays = not self._resuming.starts if is_stream else others is None and HOOKS.replays and self.num_workers > 0
        replayed = seen if replays else self._resuming.replayed
        is_placed = is_stream or self._resuming.sampler is not None
        self._skip_batches = 0 if is_placed else seen - replayed + len(self._resuming.pending)
        iterator = super().__iter__()
        if seen:
            _go_on(iterator, replayed)
            self._skip_batches = 0
        if before is not None and self._resuming is not NOTHING:  # or the iterator has done so
            torch.set_rng_state(before)  # the epoch drew its random numbers when it began
        self._resuming = NOTHING
        return iterator

    @property
    def _by_position(self) -> bool:
        """Whether randomness belongs to positions: there is a seed, and there are positions."""
        return self.seed is not None and not isinstance(self.dataset, torch.utils.data.IterableDataset)

    def _get_iterator(self) -> "BaseIterator":
        if not is_enabled():
            return super()._get_iterator()
        from stoker.feed.iterators import make_iterator  # not at the top: on other systems it cannot even be imported

        return make_iterator(self)  # type: ignore[no-any-return]

    @property
    def here(self) -> "Here":
        """What this loader has in this process, and in no other: iterators, memory, its cache, its seat in a group."""
        from stoker.feed.here import Here

        found: Here | None = self.__dict__.get("_here")
        if found is None:
            found = self.__dict__["_here"] = Here(self)
        return found

    @property
    def caching(self) -> "Caching":
        """How this loader's samples are fetched: from storage, or through a cache."""
        return self.here.caching

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next `iter()`. Without this call it is the number of earlier `iter()` calls."""
        self._progress.set_epoch(epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the training loop, in JSON's terms. Batches that were prepared but not yet seen do not count."""
        state = self._progress.state(self._route(), self.seed)
        if not self._progress.is_loaded and not self._by_position and self.group is None and is_enabled():
            from stoker.feed.positions import part_of

            if part := part_of(self, is_fresh=self._progress.ended):
                state["streams"] = {"of": state["_num_yielded"], **part}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state at the next `iter()`. A state of another dataset, order or version is refused."""
        check_kind(state)
        if state.get("_num_yielded") and is_wanted() and expected.difference() is not None:
            expected.refuse("going on from the middle of an epoch", "or begin the epoch anew")
        if not self._by_position and is_enabled():
            if is_torchdatas(state):
                from stoker.feed.torchdata import adopted

                state = adopted(state, self, {"seed": self.seed, **self._route().describe()})
            from stoker.feed.dealing import fitted

            state = fitted(state, self)
        self._progress.load(state, self._route(), self.seed)
        if not self._by_position:
            self._iterator = None  # persistent workers have gone on from elsewhere
        if self.group is not None and is_enabled():
            self.here.member.restore((state["epoch"], state["_num_yielded"]))

    def _route(self) -> Route:
        if self._by_position:
            from stoker.feed.route import recognise

            assert self.seed is not None
            return recognise(self, self.seed)
        return TorchRoute(self, keeps_seed=self._iterator is not None)

    def stats(self) -> LoaderStats:
        """What this loader has done since it was made, over all its iterators."""
        here: Here | None = self.__dict__.get("_here")
        member = None if here is None else here.member_so_far
        return self._meter.stats() if member is None else replace(self._meter.stats(), group=member.stats())

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """What happened since the last call, for loggers: `waiting_pct` of the time, `samples_per_s`, and more.

        `writer.add_scalars("loader", loader.scalars(), step)` for TensorBoard, `run.log(loader.scalars("loader/"))` for
        Weights & Biases. The first call tells of all since the first `iter()`.
        """
        return self.here.scalars.take(prefix)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from stoker.torch.shown import card_of

        return card_of(self, self.stats())

    def close(self) -> None:
        """End all workers and give all memory back now. Batches that you hold stay valid; a new `iter()` starts anew."""
        self._iterator = None
        here: Here | None = self.__dict__.pop("_here", None)
        if here is not None:
            here.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this loader in this process, so that it can be pickled and copied at any time."""
        kept = {name: value for name, value in self.__dict__.items() if name != "_here"}
        kept |= {"_iterator": None, "_progress": copy.copy(self._progress), "_meter": copy.copy(self._meter)}
        if self._position is not None:
            from stoker.feed.positions import FixedPosition

            kept["_position"] = FixedPosition(self._position.part(is_fresh=self._progress.ended))
        return kept


def _go_on(iterator: Any, replayed: int) -> None:
    """Skip batches that a resumed loop has seen: skip their indices, or prepare the batches again and drop them."""
    if replayed:
        progress = iterator._progress
        batches, samples = progress.batches, progress.samples
        for _ in range(replayed):
            next(iterator, None)
        progress.batches, progress.samples, progress.ended = batches, samples, False
    while iterator._skip:
        next(iterator._sampler_iter)
        iterator._skip -= 1
