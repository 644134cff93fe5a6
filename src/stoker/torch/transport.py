"""How batches come from workers: over slots from processes, by hand from threads."""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any, Protocol

import torch.multiprocessing

from stoker.meter import now
from stoker.stage.area import Area
from stoker.stage.context import LinedContext
from stoker.stage.inbox import Inbox, Pins
from stoker.torch.pinned import pins_for
from stoker.torch.progress import is_batched
from stoker.torch.threads import ThreadContext
from stoker.torch.worker import NOT_COMMON, Arrived, Opener, Share, Worker, are_forked, count_samples, explain


def let_go_on(workers: list[Any]) -> None:
    """Let workers go on that a signal has stopped, or is about to stop: they are to be told to end."""
    for worker in workers:
        if worker.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGCONT)


class Transport(Protocol):
    """What an iterator needs of its workers' kind."""

    context: Any
    collate: Callable[[Any], Any]
    pins: bool
    """Whether batches come page-locked, so that torch need not do it."""

    def claim_common(self) -> int:
        """A slot for several workers to fill, or NOT_COMMON."""

    def free_common(self, number: int) -> None:
        """Nobody will open it."""

    def open_common(self, shares: list[Share]) -> Any:
        """The batch in it."""

    def starting(self) -> contextlib.AbstractContextManager[None]:
        """Start workers within this."""

    def wake(self, workers: list[Any]) -> None:
        """All workers are about to be told to end: those that were stopped are to hear it."""

    def close(self, workers: list[Any]) -> None:
        """All workers have ended, or should have."""


class SlotTransport:
    """Processes; batches in slots, reports over lines."""

    def __init__(self, loader: Any, spares: list[Inbox]) -> None:
        self._spares = spares
        pins = next((spare.pins for spare in spares if spare.pins is not None), None) or pins_for(loader)
        self.pins = pins is not None
        self._inbox = _take_spare(spares, loader.num_workers, loader.prefetch_factor, pins)
        context = loader.multiprocessing_context or torch.multiprocessing
        worker = Worker(
            self._inbox.area,
            loader.collate_fn,
            loader.caching,
            batched=is_batched(loader),
            forked=are_forked(context),
        )
        self.collate = worker.collate
        opener = Opener(self._inbox)
        self.context = LinedContext(context, loader.num_workers, worker.begin, opener, explain)
        self.starting = self.context.starting
        self.free_common, self.open_common = self._inbox.free_common, opener.open_common

    def claim_common(self) -> int:
        """A slot for several workers to fill."""
        number = self._inbox.claim_common()
        return NOT_COMMON if number is None else number

    def wake(self, workers: list[Any]) -> None:
        """Let those go on that a signal has stopped."""
        let_go_on(workers)

    def close(self, workers: list[Any]) -> None:
        """Keep the slots for the next epoch, whose first batches then find their pages in place."""
        self.context.close()
        for worker in workers:
            if worker.is_alive():  # a debugger has stopped it, perhaps
                worker.kill()
                worker.join()
        if self._spares:
            self._inbox.close()
        else:
            self._inbox.renew()
            self._spares.append(self._inbox)


def _take_spare(spares: list[Inbox], workers: int, prefetch: int, pins: Pins | None) -> Inbox:
    while spares:
        inbox = spares.pop()
        fits = (inbox.area.workers, inbox.area.prefetch, inbox.pins is None) == (workers, prefetch, pins is None)
        if inbox.is_ours and fits:
            return inbox
        inbox.close()
    return Inbox(Area(workers, prefetch), pins)


class ThreadTransport:
    """Threads; batches as they are."""

    pins = False

    def __init__(self, loader: Any) -> None:
        self._caching = loader.caching
        self.context = ThreadContext(self._caching.active)
        self._collate_fn = loader.collate_fn
        self._batched = is_batched(loader)
        self.starting = contextlib.nullcontext

    def claim_common(self) -> int:
        """Parts of batches are handed over as they are."""
        return NOT_COMMON

    def free_common(self, number: int) -> None:
        """There is none."""

    def open_common(self, shares: list[Share]) -> Any:
        """There is none."""

    def collate(self, samples: Any) -> Arrived:
        """Collate, with what the meter wants to know."""
        batch = self._collate_fn(samples)
        return Arrived(batch, count_samples(samples) if self._batched else 1, now(), self._caching.take())

    def wake(self, workers: list[Any]) -> None:
        """Threads are not stopped alone."""

    def close(self, workers: list[Any]) -> None:
        """Nothing is left."""
