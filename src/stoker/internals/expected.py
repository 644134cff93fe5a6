"""What our iterators expect of torch, and what happens where a torch is not like that.

`difference()` looks once in a process, when the first loader is made, and takes a fraction of a millisecond. It checks that
the private names exist, that the functions that we call, override or replace have the known parameters, and that their code
still mentions what ours reads or replaces. Where something differs, loaders are torch's own, after one warning, and options
that only ours have are refused. Checks that take longer are in tests/internals/test_names.py.
"""

import functools
import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from stoker.errors import ConfigError

SUPPORTED = "2.11 to 2.15"
ADVICE = f"Install torch {SUPPORTED}, or a newer Stoker"
_OPEN_ENDED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Fact(NamedTuple):
    """What our iterators expect of one function of torch."""

    name: str
    """In `names.py`."""
    parameters: tuple[str, ...]
    """Any of these, each a list of words."""
    mentions: str = ""
    """Names that its code must use."""


_TOLD = (
    "index_queue data_queue done_event auto_collation collate_fn drop_last base_seed init_fn worker_id num_workers "
    "persistent_workers shared_seed"
)

FACTS = (
    Fact("Loader.__iter__", ("self",), "_get_iterator _iterator _reset"),
    Fact("Loader._get_iterator", ("self",)),
    Fact(
        "BaseIterator.__init__",
        ("self loader",),
        # First the loader's attributes that it reads, some of them replaced by us; then its own attributes.
        "_index_sampler collate_fn pin_memory generator timeout "
        "_sampler_iter _num_yielded _pin_memory _timeout _profile_name",
    ),
    Fact("BaseIterator._reset", ("self loader first_iter",), "_sampler_iter _num_yielded"),
    Fact("BaseIterator._next_index", ("self",), "_sampler_iter"),
    Fact("BaseIterator.__next__", ("self",), "_next_data _num_yielded"),
    Fact("InlineIterator.__init__", ("self loader",), "create_fetcher _collate_fn _dataset_fetcher"),
    Fact("InlineIterator._next_data", ("self",), "_next_index fetch"),
    Fact(
        "WorkersIterator.__init__",
        ("self loader",),
        "multiprocessing_context Queue Event Process _worker_loop _workers _in_order _shutdown _reset",
    ),
    Fact(
        "WorkersIterator._reset",
        ("self loader first_iter",),
        "_send_idx _rcvd_idx _task_info _worker_queue_idx_cycle _try_put_index _ResumeIteration",
    ),
    Fact("WorkersIterator._next_data", ("self",), "_get_data _process_data _task_info _rcvd_idx _try_put_index"),
    Fact("WorkersIterator._try_put_index", ("self",), "_next_index _send_idx _task_info _worker_queue_idx_cycle"),
    Fact("WorkersIterator._process_data", ("self data worker_idx",), "_try_put_index reraise"),
    Fact("WorkersIterator._try_get_data", ("self timeout",), "_data_queue get _workers is_alive"),
    Fact("WorkersIterator._get_data", ("self",), "_try_get_data _timeout"),
    Fact("WorkersIterator._shutdown_workers", ("self",), "_shutdown _workers python_exit_status"),
    Fact(
        "worker_loop",
        (f"dataset_kind dataset {_TOLD}", f"dataset_kind dataset_holder {_TOLD}"),
        "MP_STATUS_CHECK_INTERVAL WorkerInfo create_fetcher _ResumeIteration _IterableDatasetStopIteration is_set",
    ),
    Fact("DatasetKind.create_fetcher", ("kind dataset auto_collation collate_fn drop_last",)),
    Fact("worker_generator_state", ("base_seed worker_id",)),
    Fact("ExceptionWrapper.__init__", ("self exc_info where",), "exc_type exc_msg"),
    Fact("ExceptionWrapper.reraise", ("self",)),
    Fact("pin_memory", ("data device",)),
    *(
        Fact(name, ("batch collate_fn_map",))
        for name in ("collate", "collate_tensors", "collate_arrays", "collate_ints", "collate_floats")
    ),
)


@functools.cache
def difference() -> str | None:
    """How this torch is unlike those that we know, in words; None if it is like them."""
    return next(differences(), None)


def differences() -> Iterator[str]:
    """All differences, in words."""
    try:
        from stoker.internals import names, tensors, worker_info  # noqa: F401 # imported to see whether that can be done
    except (ImportError, AttributeError) as error:
        yield str(error).partition(" (/")[0]  # without torch's place on the disk
        return
    for fact in FACTS:
        yield from _deviations(names, fact)
    if not worker_info.can_be_answered():
        yield "get_worker_info does more than to look at _worker_info"


def _deviations(names: Any, fact: Fact) -> Iterator[str]:
    function = names
    for part in fact.name.split("."):
        owner, function = function, getattr(function, part, None)
        if function is None:
            yield f"{getattr(owner, '__qualname__', fact.name)} has no {part}"
            return
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & _OPEN_ENDED:
        return  # a library's own function around torch's: it hands on what it is given
    parameters = " ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    if parameters not in fact.parameters:
        yield f"{function.__qualname__} takes ({parameters.replace(' ', ', ')})"
    for mentioned in fact.mentions.split():
        if mentioned not in code.co_names:
            yield f"{function.__qualname__} does not use {mentioned}"


def fall_back(asked: Sequence[str]) -> None:
    """Where torch differs: refuse options that torch's own loader does not have, or warn once in a process."""
    if asked:
        refuse(asked[0], f"or leave out {', '.join(asked)}: then the loader is torch's own")
    _warn()


def refuse(what: str, otherwise: str) -> NoReturn:
    """Raise an error that says that something needs our iterators, and what to do."""
    raise ConfigError(f"{what} does not work here: {words()}. {ADVICE}, {otherwise}.")


def words() -> str:
    """What differs, in a sentence."""
    return f"torch {torch.__version__} loads data in another way than this Stoker knows ({difference()})"


@functools.cache
def _warn() -> None:
    warnings.warn(
        f"{words()}: loaders are torch's own here, no faster, and stats() and state_dict() count nothing. {ADVICE}.",
        stacklevel=4,  # where a loader is made
    )
