"""Chooses the iterator for a loader, and makes it with what it needs."""

import errno
import multiprocessing
import resource
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

import torch.multiprocessing
import torch.utils.data

from stoker.device.samples import Settling
from stoker.errors import ConfigError, warn
from stoker.feed import sharing
from stoker.feed.carrier import MapInlineIter, MapWorkersIter
from stoker.feed.finishing import finishing_of
from stoker.feed.pooled import InTurnIter, PoolIter, SeededPoolIter
from stoker.feed.progress import is_batched
from stoker.feed.route import EpochWorks, recognise
from stoker.feed.seeded import SeededInlineIter
from stoker.feed.stateful import (
    StatefulInlineIter,
    StatefulWorkersIter,
    StreamInlineIter,
    StreamWorkersIter,
    keeps_states,
)
from stoker.feed.stateful_threads import StatefulThreadsIter, StreamThreadsIter
from stoker.internals import worker_info
from stoker.pool.maker import Maker, PositionMaker, fetching, stacks
from stoker.pool.pool import Pool
from stoker.pool.processes import LinePool, LoaderSlots
from stoker.pool.serving import Duty, itself
from stoker.pool.thread_states import Making, OwnDuty, copies_of
from stoker.pool.threads import HereRoom, QueuePool
from stoker.slots import offers
from stoker.tensor.leaves import HereCollate
from stoker.tensor.seeding import Positions, draws_from_globals, prepares_batches, takes_rng

_DESCRIPTORS_PER_WORKER = 6


def make_iterator(loader: Any) -> Any:
    """An iterator over one epoch of a loader. If the loader has workers, they are started now."""
    try:
        return _make(loader)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise OSError(errno.EMFILE, _too_few_descriptors(loader.num_workers)) from error
    except (AttributeError, TypeError, PicklingError) as error:
        if loader.num_workers and loader.workers == "processes":
            _say_what_cannot_be_sent(loader, error)
        raise


def _make(loader: Any) -> Any:
    threads = loader.workers == "threads" and loader.num_workers > 0
    if threads:
        _check_threads(loader)
        sharing.job_of(loader)  # says that they are not shared
    elif loader.num_workers:
        loader.check_worker_number_rationality()
    loader.here.finishing = finishing_of(loader)
    if loader._by_position:
        iterator = _seeded(loader, threads=threads)
    elif loader.num_workers == 0:
        iterator = _inline_kind(loader)(loader)
    elif threads:
        iterator = _threads_kind(loader)(loader, partial(_threads_that_fetch, loader))
    elif (job := sharing.job_of(loader)) is not None:
        start = partial(_process_pool, loader, _fetching(loader, loader.collate_fn), job)
        iterator = _in_turn(loader)(loader, start)
    else:
        iterator = _workers_kind(loader)(loader, LoaderSlots(loader, loader.here.spares))
    if loader.num_workers:
        loader.here.iterators.add(iterator)
    return iterator


def _inline_kind(loader: Any) -> Any:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return StreamInlineIter
    return StatefulInlineIter if keeps_states(loader) else MapInlineIter


def _workers_kind(loader: Any) -> Any:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return StreamWorkersIter
    return StatefulWorkersIter if keeps_states(loader) else MapWorkersIter


def _threads_kind(loader: Any) -> Any:
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return StreamThreadsIter
    return StatefulThreadsIter if keeps_states(loader) else PoolIter


def _seeded(loader: Any, *, threads: bool) -> Any:
    """An iterator for a loader with a seed: the works of an epoch say what is prepared."""
    records = loader.here.finishing is not None
    split = loader.in_order and is_batched(loader) and not prepares_batches(loader.dataset) and not records
    route = recognise(loader, loader.seed)
    works = EpochWorks(route, loader._progress, loader.num_workers, split=split)
    works.steering = loader.caching.steering(loader, route.own, route.world)
    positions = Positions(loader.dataset, loader.seed, threads=threads, draws=loader._draws)

    def maker(collate_fn: Any, *, rows: bool = True) -> PositionMaker:
        is_stacked = rows and stacks(collate_fn)
        return PositionMaker(positions, collate_fn, batched=is_batched(loader), stacks=is_stacked)

    if loader.num_workers == 0:
        return SeededInlineIter(loader, works, maker(loader.collate_fn))
    own = maker(Settling(loader.collate_fn) if records else _collate_here(loader) if threads else loader.collate_fn)
    if threads:
        start = partial(_thread_pool, loader, partial(itself, own))
    else:
        job = sharing.job_of(loader, is_steered=works.steering is not None)
        start = partial(_process_pool, loader, partial(itself, own), job)
    here = maker(_collate_here(loader), rows=False)
    if loader.offload is not None:
        from stoker.feed.offloaded import OffloadedIter  # what is not asked for is not loaded

        return OffloadedIter(loader, works, here, start, has_rows=own.stacks)
    return SeededPoolIter(loader, works, here, start, has_rows=own.stacks)


def _fetching(loader: Any, collate_fn: Callable[[Any], Any]) -> Callable[[], Maker]:
    """Makes a maker without a seed for one worker."""
    return partial(fetching, loader.dataset, collate_fn, batched=is_batched(loader), drop_last=loader.drop_last)


def _in_turn(loader: Any) -> Any:
    """The kind of iterator for a loader without a seed whose batches others may make."""
    if loader.offload is None:
        return InTurnIter
    from stoker.feed.offloaded import OffloadedInTurnIter  # what is not asked for is not loaded

    return OffloadedInTurnIter


def _process_pool(loader: Any, maker: Callable[[], Maker], job: str | None, iterator: Any) -> Pool:
    context = loader.multiprocessing_context or torch.multiprocessing
    slots = LoaderSlots(loader, loader.here.spares)
    parts = _duty(loader, maker, iterator), loader.caching, context, slots
    if job is None:
        return LinePool(*parts, pins=iterator.pins)
    from stoker.pool.shared import SharedPool  # what is not asked for is not loaded

    try:
        is_unchanged = None if loader._by_position else partial(sharing.is_unchanged, loader.collate_fn, job)
        folder, is_relayed = sharing.folder(), loader.offload is not None
        if is_relayed:
            loader.here.relay(job, parts[0])
        options: dict[str, Any] = {"pins": iterator.pins, "is_relayed": is_relayed, "is_unchanged": is_unchanged}
        return SharedPool(*parts, folder, job, loader._meter, **options)
    except offers.NotOfferedError as error:
        sharing.say(loader, str(error))
        return LinePool(*parts, pins=iterator.pins)


def _thread_pool(loader: Any, maker: Callable[[], Maker], iterator: Any) -> Pool:
    return QueuePool(_duty(loader, maker, iterator), loader.caching, _room_here(loader, iterator))


def _threads_that_fetch(loader: Any, iterator: Any) -> Pool:
    """Worker threads without a seed. They share the dataset, unless it is a stream or has a state."""
    if not isinstance(iterator, StatefulThreadsIter) or not iterator.has_states:
        return _thread_pool(loader, _fetching(loader, _collate_here(loader)), iterator)
    collate, batched, told = _collate_here(loader), is_batched(loader), iterator.told
    every = -(-(loader.snapshot_every_n_steps or 0) // loader.num_workers)
    making = Making(collate, batched, loader.batch_size, loader.drop_last, iterator.starts, every, told)
    copies = copies_of(loader.dataset, loader.num_workers)
    told_first = loader.worker_init_fn, loader.num_workers, iterator.base_seed
    duty = OwnDuty(loader.dataset, *told_first, making, copies, told)
    return QueuePool(duty, loader.caching, _room_here(loader, iterator))


def _room_here(loader: Any, iterator: Any) -> HereRoom:
    collate = _collate_here(loader)
    return HereRoom(loader.caching, collate if isinstance(collate, HereCollate) else None, pins=iterator.pins)


def _duty(loader: Any, maker: Callable[[], Maker], iterator: Any) -> Duty:
    return Duty(loader.dataset, loader.worker_init_fn, loader.num_workers, iterator.base_seed, maker)


def _collate_here(loader: Any) -> Any:
    """The user's `collate_fn`. torch's default is replaced by one that collates into memory that is used again."""
    if loader.collate_fn is not torch.utils.data.default_collate:
        return loader.collate_fn
    return loader.here.collate


def _check_threads(loader: Any) -> None:
    """Warn once of what worker threads cannot do."""
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterDataPipe):
        raise ConfigError(
            "workers='threads': torch shares a datapipe among worker processes alone; use workers='processes'"
        )
    if isinstance(dataset, torch.utils.data.IterableDataset):
        if not worker_info.can_be_answered():
            raise ConfigError("workers='threads': in this torch no thread can be told its part of a stream; use processes")
        return
    if loader._told_about_threads or takes_rng(dataset):
        return
    loader._told_about_threads = True
    if draws_from_globals(lambda: dataset[0]):
        warn(
            "the dataset draws from the default generators of Python, NumPy or torch. Threads share them, so results "
            "depend on timing. Give it __getsample__(index, rng) that draws from rng, or use workers='processes'."
        )


def _say_what_cannot_be_sent(loader: Any, error: Exception) -> None:
    method = (loader.multiprocessing_context or multiprocessing).get_start_method()
    if method == "fork":
        return
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        try:
            ForkingPickler.dumps(getattr(loader, name))
        except (AttributeError, TypeError, PicklingError):
            error.add_note(
                f"The {name} cannot be sent to a worker process that is started by {method!r}. Define what it refers "
                "to at the top of a module (no lambdas, no local classes), or pass multiprocessing_context='fork'."
            )


def _too_few_descriptors(workers: int) -> str:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many open files: {workers} workers need about {_DESCRIPTORS_PER_WORKER * workers + 10} descriptors beyond "
        f"those in use, and this process may open {limit} in all. Raise the limit (`ulimit -n`, here up to {hard}) "
        "or lower num_workers."
    )
