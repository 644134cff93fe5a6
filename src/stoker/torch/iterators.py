"""Who makes the batches of a loader: one of our iterators, with what it needs."""

import errno
import multiprocessing
import resource
import warnings
import weakref
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

import torch.utils.data

from stoker.errors import ConfigError
from stoker.torch.carrier import InlineIter, Instead, MapInlineIter, MapWorkersIter, WorkersIter
from stoker.torch.course import Course, recognise
from stoker.torch.leaves import HereCollate
from stoker.torch.progress import is_batched
from stoker.torch.seeded import SeededInlineIter, SeededWorkersIter
from stoker.torch.seeding import Positions, draws_from_globals, prepares_batches, takes_rng
from stoker.torch.transport import SlotTransport, ThreadTransport

_DESCRIPTORS_PER_WORKER = 6


def make_iterator(loader: Any) -> Any:
    """An iterator of a loader, over one epoch; with workers that are started now, if it has any."""
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
    threads = loader.workers == "threads"
    if threads and loader.num_workers:
        _check_threads(loader)
    elif loader.num_workers:
        loader.check_worker_number_rationality()

    streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    seen = loader
    collate_here = loader.collate_fn  # in this process, where memory for batches is to be used again
    if collate_here is torch.utils.data.default_collate:
        collate_here = loader.__dict__.setdefault("_collate_here", HereCollate())
        if threads:
            seen = Instead(loader, collate_fn=collate_here)

    def transport(view: Any) -> Any:
        return ThreadTransport(view) if threads else SlotTransport(view, loader.__dict__.setdefault("_spares", []))

    if loader._by_position:
        split = loader.in_order and is_batched(loader) and not prepares_batches(loader.dataset)
        route = recognise(loader, loader.seed)
        course = Course(route, loader._progress, loader.num_workers, split=split)
        course.steering = loader.caching.steering(loader, route)
        positions = Positions(loader.dataset, loader.seed, threads=threads and loader.num_workers > 0, draws=loader._draws)
        if loader.num_workers == 0:
            return SeededInlineIter(loader, course, positions)
        iterator: Any = SeededWorkersIter(seen, course, positions, transport, collate_here)
    elif loader.num_workers == 0:
        return (InlineIter if streams else MapInlineIter)(loader)
    else:
        iterator = (WorkersIter if streams else MapWorkersIter)(seen, transport(seen))
    loader.__dict__.setdefault("_live", weakref.WeakSet()).add(iterator)
    return iterator


def _check_threads(loader: Any) -> None:
    """Warn once of what threads cannot give."""
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise ConfigError("workers='threads' share one dataset, so an IterableDataset would give every sample to each")
    if loader._told_about_threads or takes_rng(dataset):
        return
    loader._told_about_threads = True
    if draws_from_globals(lambda: dataset[0]):
        warnings.warn(
            "the dataset draws from the default generators of Python, NumPy or torch. Threads share them, so results "
            "depend on timing. Give it __getsample__(index, rng) that draws from rng, or use workers='processes'.",
            stacklevel=8,  # where `iter()` is called
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
