"""Workers run near the device of their training process, where that is asked for."""

import os
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import stoker
from stoker.pool import worker
from stoker.tensor.near import cores_near_device


class Cores(Dataset[Any]):
    """The cores that a worker may use."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([core in os.sched_getaffinity(0) for core in range(os.cpu_count() or 1)])


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("binds", [False, True])
def test_workers_are_bound_to_cores_near_the_device(binds: bool, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.sched_getaffinity(0)
    near = frozenset({min(own)})
    monkeypatch.setattr(worker, "cores_near_device", lambda: near if binds else None)
    with stoker.DataLoader(Cores(), 2, num_workers=1, seed=seed) as loader:
        for batch in loader:
            assert set(batch[0].nonzero().flatten().tolist()) == (near if binds else own)
    assert os.sched_getaffinity(0) == own


def test_without_a_gpu_nothing_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_NUMA", "1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert cores_near_device() is None
