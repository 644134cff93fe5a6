"""Large samples go into their rows one by one, and the first batch is filled by all workers: nobody can tell."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.torch.test_differential import assert_same
from torch.utils.data import Dataset

import stoker

LARGE = 100, 100


class Made(Dataset[Any]):
    """Samples as a function makes them."""

    def __init__(self, make: Callable[[int], Any], count: int = 22) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def array(index: int, kind: type = np.float32) -> Any:
    return np.full(LARGE, index, kind)


MAKERS: dict[str, Callable[[int], Any]] = {
    "array and label": lambda i: (array(i), i),
    "array alone": array,
    "tensor alone": lambda i: torch.full(LARGE, i, dtype=torch.float64),
    "dictionary": lambda i: {"image": array(i), "weight": i / 7, "number": i},
    "list": lambda i: [torch.full(LARGE, i), array(i, np.int16)],
    "transposed": lambda i: (array(i).T, torch.arange(30_000.0).view(100, 300).t() + i),
    "with text": lambda i: (array(i), str(i)),
    "with a truth": lambda i: (array(i), i % 2 == 0),
    "named nested": lambda i: {"pair": (array(i), i), "x": torch.ones(LARGE)},
    "numbers of two kinds": lambda i: (array(i), i if i % 5 else float(i)),
    "numbers of two kinds from the middle on": lambda i: (array(i), i if i < 5 else float(i)),
    "arrays of two kinds": lambda i: (array(i, np.float32 if i % 3 else np.float64), i),
    "arrays and tensors": lambda i: array(i) if i % 3 else torch.full(LARGE, float(i)),
    "tuples and lists": lambda i: (array(i), i) if i % 3 else [array(i), i],
    "very large numbers": lambda i: (array(i), 2**63 - 1 - i),
    "scalars of NumPy": lambda i: (array(i), np.float32(i), np.array(i)),
}


def outcome(loader: Any) -> list[Any]:
    """All batches, or the kind of error in the place of one."""
    batches: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches
        except Exception as error:
            batches.append(type(error))


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("name", MAKERS)
def test_rows_hold_what_default_collate_would_give(name: str, workers: str) -> None:
    options: dict[str, Any] = {"dataset": Made(MAKERS[name]), "batch_size": 8, "shuffle": True, "seed": 3}
    expected = outcome(stoker.DataLoader(**options))
    with stoker.DataLoader(**options, num_workers=2, workers=workers) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            given = outcome(loader)
            assert len(given) == len(expected)
            for ours, theirs in zip(given, expected, strict=True):
                assert_same(ours, theirs)


@pytest.mark.parametrize("shapes", [(100, 99), (100, 100)])
def test_unlike_shapes_are_torchs_error(shapes: tuple[int, int]) -> None:
    dataset = Made(lambda i: np.zeros((100, shapes[i == 7])))
    loader = stoker.DataLoader(dataset, batch_size=8, num_workers=2, seed=1)
    kinds = [type(batch) for batch in outcome(loader)]
    assert kinds == ([type, torch.Tensor, torch.Tensor] if shapes[0] != shapes[1] else [torch.Tensor] * 3)


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_number_that_is_too_large_is_torchs_error_in_any_row(workers: str) -> None:
    dataset = Made(lambda i: (array(i), 2**64 if i in (0, 4, 9) else i), 14)
    with stoker.DataLoader(dataset, 2, num_workers=2, seed=1, workers=workers) as loader:
        assert [batch if batch is ValueError else None for batch in outcome(loader)] == [
            *[ValueError, None, ValueError],
            *[None, ValueError, None, None],
        ]


class Uneven(Made):
    """Prepares whole batches, and gives more or fewer samples than it is asked for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = [self.make(index) for index in indices]
        return {0: samples, 6: samples[:-1], 9: samples + samples[:1], 12: []}.get(indices[0], samples)


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_dataset_may_give_more_or_fewer_samples_than_it_is_asked_for(workers: str) -> None:
    dataset = Uneven(MAKERS["array and label"], 18)
    expected = outcome(torch.utils.data.DataLoader(dataset, 3))
    assert [0 if batch is IndexError else len(batch[1]) for batch in expected] == [3, 3, 2, 4, 0, 3]
    with stoker.DataLoader(dataset, 3, num_workers=1, seed=1, workers=workers) as loader:
        assert_same(outcome(loader), expected)


def test_many_epochs_left_early_do_not_use_up_common_slots() -> None:
    with stoker.DataLoader(Made(MAKERS["array and label"]), 8, num_workers=2, seed=1, persistent_workers=True) as loader:
        for _ in range(30):
            iterator = iter(loader)
            next(iterator)
        del iterator
        gc.collect()
        inbox = loader._iterator._pool._slots.inbox
        iter(loader)
        assert inbox._turns[inbox.area.common].sum() <= 2


def test_a_batch_that_is_kept_is_not_overwritten_by_the_next_epochs_first() -> None:
    with stoker.DataLoader(Made(MAKERS["array and label"]), 8, num_workers=2, seed=1, shuffle=True) as loader:
        kept = [next(iter(loader)) for _ in range(8)]
        copies = [[leaf.clone() for leaf in batch] for batch in kept]
        list(loader)
        assert all(
            torch.equal(*pair) for batch, copy in zip(kept, copies, strict=True) for pair in zip(batch, copy, strict=True)
        )
