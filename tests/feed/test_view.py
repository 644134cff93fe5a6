from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from stoker.feed.view import IndexBatches


class InSteps:
    """A user's sampler: lists of several lengths, single indices between them, and a generator within."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for length in (5, 0, 1, 12):
            yield from torch.randint(100, (length,), generator=self.generator).tolist()
            yield 1000 + length
        yield from (index for index in range(7))
        yield from range(7, 9)


SAMPLERS: dict[str, Callable[[torch.Generator], Any]] = {
    "shuffled": lambda g: RandomSampler(range(23), generator=g),
    "shuffled, more than all": lambda g: RandomSampler(range(23), num_samples=50, generator=g),
    "with replacement": lambda g: RandomSampler(range(23), replacement=True, num_samples=70, generator=g),
    "in order": lambda g: SequentialSampler(range(23)),
    "subset": lambda g: SubsetRandomSampler(range(23), generator=g),
    "weighted": lambda g: WeightedRandomSampler([1.0] * 23, 23, generator=g),
    "user's": InSteps,
}


def drawn(wrap: Callable[[BatchSampler], Any], kind: str, size: int, drop_last: bool) -> list[tuple[list[int], bytes]]:
    """All batches, with the generator's state when each came, and at the end."""
    generator = torch.Generator().manual_seed(7)

    def state() -> bytes:
        return bytes(generator.get_state().numpy())

    batches = wrap(BatchSampler(SAMPLERS[kind](generator), size, drop_last))
    return [*((batch, state()) for batch in batches), ([], state())]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_batches_and_draws_are_those_of_torch(kind: str, drop_last: bool) -> None:
    for size in (1, 4, 5, 23, 100):
        assert drawn(IndexBatches, kind, size, drop_last) == drawn(iter, kind, size, drop_last)


def test_a_size_that_changes_within_an_epoch_counts_from_the_next_batch_on() -> None:
    def lengths(wrap: Callable[[BatchSampler], Any]) -> list[int]:
        sampler = BatchSampler(SequentialSampler(range(20)), 4, False)
        found = []
        for batch in wrap(sampler):
            found.append(len(batch))
            sampler.batch_size = 6
        return found

    assert lengths(IndexBatches) == lengths(iter) == [4, 6, 6, 4]


def test_a_way_to_iterate_that_somebody_has_put_into_torchs_class_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchSampler, "__iter__", lambda self: iter([[1], [2]]))
    assert list(IndexBatches(BatchSampler(range(9), 3, False))) == [[1], [2]]
