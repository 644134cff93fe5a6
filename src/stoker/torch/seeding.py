"""Randomness that belongs to a position in the global order.

Before a sample is prepared, all generators that its code may draw from are set by (seed, epoch, position). Who prepares it,
beside what, and after what, then makes no difference. Setting them costs several microseconds, and most datasets never
draw: so a run of samples is first prepared without, between two looks at the generators, and only if one of them has
moved is it done again, seeded, and so from then on.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from stoker.order import mix

_COLLATE = 1 << 62
"""Stands for a position where a batch is collated: apart from those of all samples."""
_UNTOUCHED = 20250711
_torch_generator = torch.default_generator


def seed_generators(number: int) -> None:
    """Set Python's, NumPy's and torch's default generators (not by `torch.manual_seed`, which visits every device)."""
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    _torch_generator.manual_seed(number >> 1)


def _draw() -> tuple[float, float, int]:
    return random.random(), np.random.random_sample(), int(torch.empty((), dtype=torch.int64).random_().item())


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """Leave the default generators of this process as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class Positions:
    """Prepares samples by their positions."""

    def __init__(self, dataset: Any, seed: int, *, threads: bool = False) -> None:
        self.dataset = dataset
        self.seed = seed
        self.threads = threads
        self.draws = takes_rng(dataset) or hasattr(dataset, "__getitems__")
        self._untouched: tuple[float, float, int] | None = None

    def prepare(self, epoch: int, first: int, step: int, ids: Sequence[Any]) -> list[Any]:
        """The samples at `first`, `first + step`, ..."""
        dataset = self.dataset
        if takes_rng(dataset):
            places = enumerate(ids)
            return [dataset.__getsample__(index, self.rng(epoch, first + step * number)) for number, index in places]
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            if not self.threads:
                seed_generators(mix(self.seed, epoch, first))
            return dataset.__getitems__(ids)  # type: ignore[no-any-return]
        if self.threads:
            return [dataset[index] for index in ids]
        samples = None if self.draws else self._prepare_unseeded(ids)
        if samples is not None:
            return samples
        samples = []
        for number, index in enumerate(ids):
            seed_generators(mix(self.seed, epoch, first + step * number))
            samples.append(self.dataset[index])
        return samples

    def seed_collate(self, epoch: int, first: int) -> None:
        """Set the generators for the collation of the batch that begins at a position."""
        if not self.threads:
            seed_generators(mix(self.seed, epoch, first, _COLLATE))

    def rng(self, epoch: int, position: int) -> np.random.Generator:
        """A generator for the sample at a position, for datasets that take one."""
        return np.random.Generator(np.random.Philox(key=[mix(self.seed, epoch), position]))

    def _prepare_unseeded(self, ids: Sequence[Any]) -> list[Any] | None:
        """The samples, or None when preparing them has drawn from a generator: then from now on all are seeded."""
        seed_generators(_UNTOUCHED)
        if self._untouched is None:
            self._untouched = _draw()
            seed_generators(_UNTOUCHED)
        try:
            samples = [self.dataset[index] for index in ids]
        except Exception:
            self.draws = _draw() != self._untouched
            if self.draws:
                return None
            raise
        self.draws = _draw() != self._untouched
        return None if self.draws else samples


def takes_rng(dataset: Any) -> bool:
    """Whether a dataset prepares samples with a generator that it is given: `__getsample__(index, rng)`."""
    return hasattr(dataset, "__getsample__")


def draws_from_globals(look: Callable[[], Any]) -> bool:
    """Whether calling something draws from a default generator of this process, which is left as it was."""
    with generators_restored():
        seed_generators(_UNTOUCHED)
        untouched = _draw()
        seed_generators(_UNTOUCHED)
        with contextlib.suppress(Exception):  # it will be raised where it belongs
            look()
        return _draw() != untouched
