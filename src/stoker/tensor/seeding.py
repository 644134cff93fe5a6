"""Randomness that belongs to a position in the global order.

Before a sample is prepared, all generators that its code may draw from are set by (seed, epoch, position). Then it makes no
difference which worker prepares the sample, and after which others. Setting the generators costs several microseconds a
sample, and most datasets never draw. So batches are first made without it, while a `_Watch` looks at the generators. If one
has moved, this batch is made again with seeds, and so are all later ones.
"""

import contextlib
import itertools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from stoker.order import mix

_COLLATE = 1 << 62
"""Stands for a position where a batch is collated: apart from those of all samples."""
_WATCHED = 0x5EED5EED5EED
_torch_generator = torch.default_generator

Collate = Callable[[Iterable[Any]], Any]
"""Takes samples as they are prepared. A user's own function is given a list, and draws after all samples were made."""


def seed_generators(number: int) -> None:
    """Set Python's, NumPy's and torch's default generators (not by `torch.manual_seed`, which visits every device)."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    _torch_generator.manual_seed(number >> 1)


def _states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(states: tuple[Any, Any, torch.Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def _written(states: tuple[Any, Any, torch.Tensor]) -> tuple[Any, bytes, bytes]:
    """A generator's state as a value that can be compared."""
    return states[0], pickle.dumps(states[1]), states[2].numpy().tobytes()


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """Leave the default generators of this process as they were."""
    states = _states()
    try:
        yield
    finally:
        _restore(states)


class Generators:
    """The default generators of this process, as they were at a moment."""

    def __init__(self) -> None:
        self.keep()

    def keep(self) -> None:
        """Remember them as they are now."""
        self._states = _states()
        self._text = _written(self._states)

    def moved(self) -> bool:
        """Whether one of them was drawn from, or set, since then."""
        return _written(_states()) != self._text

    def restore(self) -> None:
        """Put them back."""
        _restore(self._states)


class _Watch:
    """Notices draws from the default generators: it compares them with generators that nobody draws from."""

    def __init__(self) -> None:
        self._python = random.Random()
        self._numpy = np.random.RandomState()
        self._torch = torch.Generator()
        self._number = torch.empty((), dtype=torch.int64)

    def start(self) -> None:
        """Set the default generators and those that they are compared with alike."""
        seed_generators(_WATCHED)
        self._python.seed(_WATCHED)
        self._numpy.seed(_WATCHED & 0xFFFFFFFF)
        self._torch.manual_seed(_WATCHED >> 1)

    def moved(self) -> bool:
        """Whether a default generator was drawn from since the start, or since the last look."""
        return (
            random.random() != self._python.random()
            or np.random.random_sample() != self._numpy.random_sample()
            or self._number.random_().item() != self._number.random_(generator=self._torch).item()
        )


class Positions:
    """Makes batches with randomness that belongs to positions."""

    def __init__(self, dataset: Any, seed: int, *, threads: bool = False, draws: bool = False) -> None:
        self.dataset = dataset
        self.seed = seed
        self.threads = threads
        self.draws = draws or prepares_batches(dataset)
        self._looked = False

    def make(self, epoch: int, first: int, step: int, ids: Sequence[Any], collate: Collate) -> Any:
        """Prepare the samples at `first`, `first + step`, ... and collate them, as they come or all at once."""
        if self.threads:
            return collate(self._prepare(epoch, first, step, ids))
        if not self.draws:
            watch = self._watch()
            try:
                looked: list[Any] = []
                if not self._looked:
                    # Most datasets that draw do so for every sample, so one sample tells, and not a whole batch.
                    self._looked = True
                    looked = list(self._prepare(epoch, first, step, ids[:1]))
                    self.draws = watch.moved()
                if not self.draws:
                    rest = self._prepare(epoch, first + step * len(looked), step, ids[len(looked) :])
                    batch = collate(itertools.chain(looked, rest) if looked else rest)
                    self.draws = watch.moved()
            except Exception:
                self.draws = watch.moved()
                if not self.draws:
                    raise
            if not self.draws:
                return batch
        return collate(self._prepare_seeded(epoch, first, step, ids))

    def collate(self, epoch: int, first: int, samples: Iterable[Any], collate: Collate) -> Any:
        """Collate with the generators set for the batch that begins at a position."""
        if not self.threads:
            seed_generators(mix(self.seed, epoch, first, _COLLATE))
        return collate(samples)

    def _watch(self) -> _Watch:
        """In a worker one watch lasts: nobody else draws. In the training process, generators are put back each batch."""
        if not hasattr(self, "_watching") or torch.utils.data.get_worker_info() is None:
            self._watching = _Watch()
            self._watching.start()
        return self._watching

    def _prepare(self, epoch: int, first: int, step: int, ids: Sequence[Any]) -> Iterable[Any]:
        dataset = self.dataset
        if takes_rng(dataset):
            generators = (self.rng(epoch, first + step * number) for number in range(len(ids)))
            if hasattr(dataset, "__getsamples__"):
                return dataset.__getsamples__(ids, generators)  # type: ignore[no-any-return]
            return (dataset.__getsample__(index, rng) for index, rng in zip(ids, generators, strict=True))
        if prepares_batches(dataset):
            return self._prepare_together(ids)
        get = dataset.__getitem__
        return (get(index) for index in ids)  # not `map`: a sample that raises StopIteration would be its end

    def _prepare_together(self, ids: Sequence[Any]) -> Iterator[Any]:
        yield from self.dataset.__getitems__(ids)  # in a generator, where StopIteration is an error

    def _prepare_seeded(self, epoch: int, first: int, step: int, ids: Sequence[Any]) -> Iterator[Any]:
        """The samples, each prepared with its own seeds; at the end the generators are seeded for collating."""
        if prepares_batches(self.dataset):
            seed_generators(mix(self.seed, epoch, first))
            yield from self._prepare(epoch, first, step, ids)
            seed_generators(mix(self.seed, epoch, first, _COLLATE))
            return
        for number, index in enumerate(ids):
            position = first + step * number
            seed_generators(mix(self.seed, epoch, position))
            yield from self._prepare(epoch, position, step, [index])
        seed_generators(mix(self.seed, epoch, first, _COLLATE))

    def rng(self, epoch: int, position: int) -> np.random.Generator:
        """A generator for the sample at a position, for datasets that take one."""
        return np.random.Generator(np.random.Philox(key=[mix(self.seed, epoch), position]))


def takes_rng(dataset: Any) -> bool:
    """Whether a dataset prepares samples with a generator that it is given: `__getsample__(index, rng)`."""
    return hasattr(dataset, "__getsample__")


def prepares_batches(dataset: Any) -> bool:
    """Whether a dataset makes all samples of a batch in one call: then no sample can be seeded by itself."""
    return bool(getattr(dataset, "__getitems__", None)) and not takes_rng(dataset)


def draws_from_globals(look: Callable[[], Any]) -> bool:
    """Whether a call draws from a default generator of this process. The generators are left as they were."""
    # Nothing is set unless the call drew: other threads may use the same generators.
    before = _states()
    with contextlib.suppress(Exception):  # the sample will raise it again in its own batch
        look()
    if _written(_states()) == _written(before):
        return False
    _restore(before)
    return True
