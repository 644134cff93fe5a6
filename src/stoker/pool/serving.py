"""What a worker of ours does, in a process or a thread: it takes work from an exchange, does it, and publishes the result.

An exchange is where work comes from and where results go. User code sees the same here as in torch's worker loop:
`get_worker_info`, seeds, error messages.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from stoker.internals import worker_info
from stoker.internals.names import ExceptionWrapper, WorkerInfo, set_worker_signal_handlers, worker_generator_state
from stoker.pool.maker import Maker, Room
from stoker.pool.work import Made, Work

Result = Made | ExceptionWrapper
"""What became of a work: a batch, or an error of the user's."""


class Exchange(Protocol):
    """Where a worker's work comes from, and where results go."""

    def next(self) -> tuple[Any, Work] | None:
        """The next work, with the name that its result must have. None if there is no more."""

    def publish(self, name: Any, result: Result) -> None:
        """Hand over what was made."""

    def give_up(self, name: Any) -> None:
        """Give up a work because this worker ends."""


@dataclass(frozen=True)
class Duty:
    """What every worker of a loader is told before its first work. It is sent to worker processes."""

    dataset: Any
    init_fn: Callable[[int], object] | None
    workers: int
    base_seed: int
    maker: Callable[[], Maker]
    """Makes the maker, where it is going to work."""

    def info(self, worker: int) -> Any:
        """What `get_worker_info()` gives in a worker."""
        return WorkerInfo(id=worker, num_workers=self.workers, seed=self.base_seed + worker, dataset=self.dataset)

    def begin(self, worker: int, where: str) -> "Maker | _Failing":
        """Call the user's `worker_init_fn`, and return a maker. If that fails, every batch raises its error."""
        try:
            return self.begin_or_raise(worker)
        except Exception:
            return _Failing(ExceptionWrapper(where=where))

    def begin_or_raise(self, worker: int) -> Maker:
        """Do what `begin` does, but raise an error at once."""
        if self.init_fn is not None:
            self.init_fn(worker)
        return self.maker()

    def become_worker(self, worker: int) -> None:
        """Prepare a process as torch prepares its workers."""
        set_worker_signal_handlers()
        torch.set_num_threads(1)
        seed = self.base_seed + worker
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(worker_generator_state(self.base_seed, worker))
        worker_info.set_of_process(self.info(worker))


def itself(maker: Maker) -> Maker:
    """For a `Duty` whose maker all worker threads may share. Each worker process gets a copy of it."""
    return maker


class _Failing:
    """The maker of a worker that could not begin."""

    def __init__(self, failure: ExceptionWrapper) -> None:
        self._failure = failure

    def make(self, work: Work, room: Room) -> Result:
        """The error with which this worker failed to begin."""
        return self._failure


def serve(maker: Maker | _Failing, where: str, exchange: Exchange, room: Room) -> None:
    """Do the exchange's work until there is no more. `where` appears in messages of the user's errors."""
    while (given := exchange.next()) is not None:
        do(maker, where, exchange, room, *given)
        del given


def do(maker: Maker | _Failing, where: str, exchange: Exchange, room: Room, name: Any, work: Work) -> None:
    """Do one work, and publish the batch or the error."""
    try:
        result: Result = maker.make(work, room)
    except Exception:
        result = ExceptionWrapper(where=where)
    except BaseException:
        exchange.give_up(name)
        raise
    exchange.publish(name, result)
