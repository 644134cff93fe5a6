"""`stoker.DataLoader`: torch's DataLoader, at the speed of the hardware.

The class adds nothing to what a loader means. It decides who makes the batches: our iterators, or torch's own when
`STOKER_DISABLE=1` is set or the system is not Linux.
"""

import errno
import inspect
import multiprocessing
import os
import platform
import resource
import warnings
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from types import TracebackType
from typing import Any, Self, TypeVar

import torch.utils.data
import torch.utils.data.dataloader as torch_dataloader

from stoker.meter import LoaderStats, Meter

T_co = TypeVar("T_co", covariant=True)

_TORCH_KNOWS = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
_DESCRIPTORS_PER_WORKER = 6


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A drop-in for `torch.utils.data.DataLoader`: the same arguments, batches and errors, sooner.

    Batches from workers arrive as views of shared memory, without a copy. They are yours for as long as you keep them.
    `stats()` tells what the loader has done; `close()` ends its workers at once.
    """

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
    ) -> None:
        newer: dict[str, Any] = {"in_order": in_order}
        if "in_order" not in _TORCH_KNOWS:
            if not in_order:
                raise TypeError(f"in_order=False needs torch 2.6 or newer; this is torch {torch.__version__}")
            newer = {}
            self.in_order = in_order
        self._meter = Meter()
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
            **newer,
        )

    def _get_iterator(self) -> torch_dataloader._BaseDataLoaderIter:
        if not _is_enabled():
            return super()._get_iterator()
        # Not at the top: on other systems than Linux these cannot even be imported.
        from stoker.torch.carrier import InlineIter, WorkersIter

        if self.num_workers == 0:
            return InlineIter(self, self._meter)
        self.check_worker_number_rationality()
        try:
            iterator = WorkersIter(self, self._meter, self.__dict__.setdefault("_spares", []))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise OSError(errno.EMFILE, _too_few_descriptors(self.num_workers)) from error
        except (AttributeError, TypeError, PicklingError) as error:
            self._say_what_cannot_be_sent(error)
            raise
        self.__dict__.setdefault("_live", weakref.WeakSet()).add(iterator)
        return iterator

    def _say_what_cannot_be_sent(self, error: Exception) -> None:
        method = (self.multiprocessing_context or multiprocessing).get_start_method()
        if method == "fork":
            return
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            try:
                ForkingPickler.dumps(getattr(self, name))
            except (AttributeError, TypeError, PicklingError):
                error.add_note(
                    f"The {name} cannot be sent to a worker process that is started by {method!r}. Define what it refers "
                    "to at the top of a module (no lambdas, no local classes), or pass multiprocessing_context='fork'."
                )

    def stats(self) -> LoaderStats:
        """What this loader has done since it was made, over all its iterators."""
        return self._meter.stats()

    def close(self) -> None:
        """End all workers and give all memory back now. Batches that you hold stay valid; a new `iter()` starts anew."""
        self._iterator = None
        for iterator in list(self.__dict__.get("_live", ())):
            iterator._shutdown_workers()
        for inbox in self.__dict__.pop("_spares", ()):
            inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but iterators and memory, so that a loader can be pickled and copied at any time."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_live", "_spares")}


def _is_enabled() -> bool:
    if os.environ.get("STOKER_DISABLE", "0") not in ("", "0"):
        return False
    if platform.system() == "Linux":
        return True
    warnings.warn("stoker.DataLoader works on Linux; here it behaves as torch's own", stacklevel=4)
    return False


def _too_few_descriptors(workers: int) -> str:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many open files: {workers} workers need about {_DESCRIPTORS_PER_WORKER * workers + 10} descriptors beyond "
        f"those in use, and this process may open {limit} in all. Raise the limit (`ulimit -n`, here up to {hard}) "
        "or lower num_workers."
    )
