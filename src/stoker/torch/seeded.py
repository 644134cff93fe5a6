"""Workers and batches of a loader with a seed: the same carrier, other orders.

torch's fetcher asks the dataset for the samples of an order and hands them to `collate_fn`; both are ours here.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils import worker as torch_worker

from stoker.torch.carrier import Instead, MapInlineIter, MapWorkersIter
from stoker.torch.course import Course
from stoker.torch.seeding import Positions, generators_restored
from stoker.torch.transport import Transport


class Ordered:
    """An order on its way through torch's fetcher: the dataset takes it, `collate_fn` carries it out."""

    __slots__ = ("order",)

    def __init__(self, order: tuple[Any, ...]) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order[3])


class OrderedDataset(torch.utils.data.Dataset[Any]):
    """A dataset as torch's fetcher sees it: its indices are orders."""

    def __getitems__(self, order: Any) -> Ordered:
        """Pass the order on."""
        return Ordered(order)

    __getitem__ = __getitems__


class SeededCollate:
    """Carries out orders. Parts of batches are left as lists of samples."""

    def __init__(self, positions: Positions, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self.positions = positions
        self.collate_fn = collate_fn
        self.batched = batched

    def __call__(self, ordered: Ordered) -> Any:
        """Prepare samples and collate them."""
        epoch, first, step, ids, is_part = ordered.order
        return self.positions.make(epoch, first, step, ids, list if is_part else self._collate)

    def _collate(self, samples: list[Any]) -> Any:
        return self.collate_fn(samples if self.batched else samples[0])

    def merge(self, epoch: int, first: int, samples: list[Any]) -> Any:
        """Collate a batch that was prepared in parts."""
        return self.positions.collate(epoch, first, samples, self._collate)


class UsersDataset:
    """A `worker_init_fn` that shows user code the user's dataset in `get_worker_info()`."""

    def __init__(self, dataset: Any, init_fn: Callable[[int], None] | None) -> None:
        self.dataset = dataset
        self.init_fn = init_fn

    def __call__(self, worker: int) -> None:
        """Prepare a worker."""
        info = torch_worker._worker_info
        if info is not None:
            torch_worker._worker_info = type(info)(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=self.dataset
            )
        if self.init_fn is not None:
            self.init_fn(worker)


def seeded_view(loader: Any, course: Course, positions: Positions) -> Any:
    """A loader as torch's iterators shall see it when it has a seed."""
    return Instead(
        loader,
        dataset=OrderedDataset(),
        _index_sampler=course,
        collate_fn=SeededCollate(positions, loader.collate_fn, batched=loader._auto_collation),
        worker_init_fn=UsersDataset(loader.dataset, loader.worker_init_fn),
        generator=torch.Generator(),  # torch draws a seed for its workers; the user's generators are left alone
        _skip_batches=0,
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As in workers: threads that meet at a barrier while all cores are taken by workers cost a hundred milliseconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class SeededInlineIter(MapInlineIter):
    """`num_workers=0`, with a seed. The training process's own generators are left as they were."""

    def __init__(self, loader: Any, course: Course, positions: Positions) -> None:
        self._course = course
        super().__init__(seeded_view(loader, course, positions))

    def _obtain(self) -> Any:
        with generators_restored():
            return super()._obtain()

    def _saw(self) -> None:
        self._progress.saw(self._course.ordered.popleft()[1])


class SeededWorkersIter(MapWorkersIter):
    """`num_workers>0`, with a seed. Batches that were ordered in parts are collated here."""

    def __init__(
        self,
        loader: Any,
        course: Course,
        positions: Positions,
        transport: Callable[[Any], Transport],
        collate_here: Callable[[Any], Any],
    ) -> None:
        self._course = course
        view = seeded_view(loader, course, positions)
        self._merge = SeededCollate(positions, collate_here, batched=True).merge
        super().__init__(view, transport(view))

    def _obtain(self) -> Any:
        if not self._course.ordered or self._course.ordered[0][0] == 1:
            return super()._obtain()
        parts, _, first = self._course.ordered[0]
        samples: list[Any] = []
        failure: Exception | None = None
        for _ in range(parts):
            try:
                samples += super()._obtain()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        with generators_restored(), _one_thread():
            batch = self._merge(self._progress.epoch, first, samples)
        pinned = self._pin_memory or (self._transport is not None and self._transport.pins)
        return pin_memory.pin_memory(batch) if pinned else batch

    def _saw(self) -> None:
        self._progress.saw(self._course.ordered.popleft()[1])
