"""Workers and batches of a loader with a seed: the same carrier, other orders.

torch's fetcher asks the dataset for the samples of an order and hands them to `collate_fn`; both are ours here.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch.utils.data

from stoker.stage.outbox import Outbox
from stoker.torch.carrier import Instead, MapInlineIter, MapWorkersIter
from stoker.torch.course import Course
from stoker.torch.dataset import advised
from stoker.torch.leaves import HereCollate, collates_as_torch
from stoker.torch.progress import is_batched, listed
from stoker.torch.rows import are_large, stack
from stoker.torch.seeding import Positions, generators_restored
from stoker.torch.transport import Transport
from stoker.torch.worker import NOT_COMMON, Share
from stoker.torch.worker_info import show_dataset


class Ordered:
    """An order on its way through torch's fetcher: the dataset takes it, `collate_fn` carries it out."""

    __slots__ = ("common", "ids", "order")

    def __init__(self, order: tuple[Any, ...]) -> None:
        self.order = order
        self.ids = listed(order[3])
        self.common = order[4][0] if order[4] else NOT_COMMON

    def __len__(self) -> int:
        return len(self.ids)


class OrderedDataset(torch.utils.data.Dataset[Any]):
    """A dataset as torch's fetcher sees it: its indices are orders."""

    def __getitems__(self, order: Any) -> Ordered:
        """Pass the order on."""
        return Ordered(order)

    __getitem__ = __getitems__


class SeededCollate:
    """Carries out orders. Parts of batches that have no rows to go to are left as lists of samples."""

    outbox: Outbox | None = None
    """Where batches lie, in a worker process."""

    def __init__(self, positions: Positions, collate_fn: Callable[[Any], Any], *, batched: bool, stacks: bool) -> None:
        self.positions = positions
        self.collate_fn = collate_fn
        self.batched = batched
        self.stacks = stacks and batched
        """Whether `collate_fn` is torch's, so that samples can go into their rows by themselves."""
        self.large: bool | None = None
        """Whether samples are so large that it pays, once one was seen."""

    def __call__(self, ordered: Ordered) -> Any:
        """Prepare samples and collate them."""
        epoch, first, step, _, part, decision = ordered.order
        if decision is None:
            return self._carry_out(epoch, first, step, ordered.ids, part)
        with advised(decision):
            return self._carry_out(epoch, first, step, ordered.ids, part)

    def _carry_out(self, epoch: int, first: int, step: int, ids: Any, part: Any) -> Any:
        make = partial(self.positions.make, epoch, first, step, ids)
        if part:
            common, start, total = part
            if common == NOT_COMMON or not self.stacks or self.outbox is None or not self.outbox.claimed:
                return make(list)
            own = range(start, start + len(ids))
            return make(partial(stack, own=own, total=total, outbox=self.outbox, collate=list))
        if not self.stacks or not self.large:
            return make(self._collate)
        if isinstance(self.collate_fn, HereCollate):
            with self.collate_fn.claimed() as outbox:
                return make(self._stacking(outbox, len(ids), self.collate_fn.collate))
        return make(self._stacking(self.outbox, len(ids), self.collate_fn))

    def _stacking(self, outbox: Outbox | None, count: int, collate: Callable[[Any], Any]) -> Callable[[Iterable[Any]], Any]:
        if outbox is None or not outbox.claimed:
            return self._collate
        return partial(stack, own=range(count), total=count, outbox=outbox, collate=collate)

    def _collate(self, samples: Iterable[Any]) -> Any:
        whole = list(samples)
        if self.large is None:
            self.large = self.stacks and are_large(whole[0])
        return self.collate_fn(whole if self.batched else whole[0])

    @property
    def draws(self) -> bool:
        """Whether the dataset was seen to draw from a default generator."""
        return self.positions.draws

    def make(self, epoch: int, first: int, step: int, ids: Any) -> Any:
        """Prepare a whole batch."""
        return self.positions.make(epoch, first, step, listed(ids), self._collate)

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
        show_dataset(self.dataset)
        if self.init_fn is not None:
            self.init_fn(worker)


def seeded_view(loader: Any, course: Course, positions: Positions) -> Any:
    """A loader as torch's iterators shall see it when it has a seed."""
    return Instead(
        loader,
        dataset=OrderedDataset(),
        indices=course,
        collate_fn=SeededCollate(
            positions, loader.collate_fn, batched=is_batched(loader), stacks=_stacks(loader.collate_fn)
        ),
        worker_init_fn=UsersDataset(loader.dataset, loader.worker_init_fn),
        generator=torch.Generator(),  # torch draws a seed for its workers; the user's generators are left alone
        _skip_batches=0,
    )


def _stacks(collate_fn: Callable[[Any], Any]) -> bool:
    is_torchs = collate_fn is torch.utils.data.default_collate or isinstance(collate_fn, HereCollate)
    return is_torchs and collates_as_torch()


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
        if self._course.ordered:  # or else a worker has died after the last batch
            self._progress.saw(self._course.ordered.popleft().samples)


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
        self._loader = getattr(loader, "_loader", loader)
        view = seeded_view(loader, course, positions)
        self._here = SeededCollate(positions, collate_here, batched=True, stacks=False)
        carried = transport(view)
        if view.collate_fn.stacks:
            course.claim_common, course.free_common = carried.claim_common, carried.free_common
        super().__init__(view, carried)

    def _saw_draws(self) -> None:
        self._loader._draws = True

    def _obtain(self) -> Any:
        if not self._course.ordered or self._course.ordered[0].parts == 1:
            return super()._obtain()
        ordered = self._course.ordered[0]
        parts: list[Any] = []
        failure: Exception | None = None
        for _ in range(ordered.parts):
            try:
                parts.append(super()._obtain())
            except Exception as error:
                failure = failure or error
        if failure is not None:
            self._course.forget(ordered)
            raise failure
        if all(type(part) is Share and part.layout == parts[0].layout for part in parts):
            assert self._transport is not None
            return self._transport.open_common(parts)
        self._course.forget(ordered)
        # Threads have drawn from this process's generators meanwhile, and draw on: there is no state to go back to.
        with contextlib.nullcontext() if self._here.positions.threads else generators_restored(), _one_thread():
            if all(type(part) is list for part in parts):
                batch = self._here.merge(self._progress.epoch, ordered.first, list(itertools.chain(*parts)))
            else:  # too unlike each other to lie in one slot
                batch = self._here.make(self._progress.epoch, *ordered[2:5])
        return self._pinned(batch)

    def _saw(self) -> None:
        if self._course.ordered:  # or else a worker has died after the last batch
            self._progress.saw(self._course.ordered.popleft().samples)
