"""Every crew with every exchange that it has: processes over lines, threads over queues, and both over a group's table."""

import secrets
from typing import Any

import pytest

import stoker
from stoker.feed import sharing
from stoker.testing import PoolContract, ProcessPoolContract


class TestProcessesOverLines(ProcessPoolContract):
    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, prefetch_factor=4, seed=1)


class TestPersistentProcessesOverLines(ProcessPoolContract):
    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        options: dict[str, Any] = {"prefetch_factor": 4, "seed": 1, "persistent_workers": True}
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, **options)


class TestProcessesThatShare(ProcessPoolContract):
    """One rank, whose workers no other rank helps."""

    @pytest.fixture(autouse=True)
    def shares_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        job = secrets.token_hex(4)
        monkeypatch.setattr(sharing, "job_of", lambda *_, **__: job)

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        options: dict[str, Any] = {"prefetch_factor": 4, "seed": 1, "ranks": "shared"}
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, **options)


class TestProcessesOfTorch(ProcessPoolContract):
    """torch's own loop and iterator, over slots of ours."""

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, prefetch_factor=4)


class TestThreadsOverQueues(PoolContract):
    looks = 1  # whether the dataset draws from generators that threads share

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, prefetch_factor=4, workers="threads")


class TestThreadsOverQueuesWithASeed(PoolContract):
    looks = 1

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, prefetch_factor=4, workers="threads", seed=1)


class TestProcessesOverATable(ProcessPoolContract):
    ahead = 8  # a group may always stage 16 batches, if its memory is large enough

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, group=f"test-{secrets.token_hex(4)}")


class TestThreadsOverATable(PoolContract):
    ahead = 8

    def feed(self, dataset: Any, *, batch_size: int, workers: int) -> Any:
        name = f"test-{secrets.token_hex(4)}"
        return stoker.DataLoader(dataset, batch_size, num_workers=workers, group=name, workers="threads")
