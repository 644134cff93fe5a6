"""Several training threads, each with worker threads of its own: every batch is the one that a single thread makes."""

import queue
import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

import stoker

COUNT, BATCH, EPOCHS = 40, 4, 2
KINDS = ("small", "large", "dict", "unlike", "text")
LOADERS = 6
"""How many each training thread makes."""


class Drawn(Dataset[Any]):
    """Samples of several kinds, each drawn from the generator that it is given."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return COUNT

    def __getsample__(self, index: int, rng: np.random.Generator) -> Any:
        if self.kind == "small":
            return rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), index
        if self.kind == "large":  # into their rows, one by one
            return torch.from_numpy(rng.random((3, 64, 64), dtype=np.float32)), index
        if self.kind == "dict":
            return {"array": rng.random(40), "int": int(rng.integers(9)), "float": float(rng.random())}
        if self.kind == "unlike":
            return torch.full((10_000,), float(rng.random()), dtype=torch.float64 if index % 11 == 0 else torch.float32)
        return f"{index} {rng.integers(1 << 40)}", torch.tensor([index])


def flat(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return flat(list(batch.values()))
    if isinstance(batch, list | tuple):
        return [leaf for part in batch for leaf in flat(part)]
    return [batch.numpy().tobytes()] if isinstance(batch, torch.Tensor) else [batch]


class Trial:
    """Training threads that keep batches for a while, or let another thread drop them."""

    def __init__(self) -> None:
        self.data = {kind: Drawn(kind) for kind in KINDS}
        self.expected: dict[str, list[list[Any]]] = {}
        for kind in KINDS:
            alone = stoker.DataLoader(self.data[kind], BATCH, shuffle=True, seed=5)
            self.expected[kind] = [flat(batch) for _ in range(EPOCHS) for batch in alone]
        self.wrong: list[Any] = []
        self.dropped: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def train(self, number: int) -> None:
        try:
            for chosen in range(LOADERS):
                self._load(random.Random(LOADERS * number + chosen))
        except BaseException as error:
            self.wrong.append(error)

    def _load(self, chance: random.Random) -> None:
        kind = chance.choice(KINDS)
        loader = stoker.DataLoader(
            self.data[kind],
            BATCH,
            shuffle=True,
            seed=5,
            num_workers=chance.choice([1, 2]),
            workers="threads",
            prefetch_factor=chance.choice([1, 2, 4]),
            persistent_workers=chance.random() < 0.3,
        )
        left_at = chance.randrange(3 * len(self.expected[kind]))
        kept: list[Any] = []
        step = 0
        for _ in range(EPOCHS):
            for batch in loader:
                expected = self.expected[kind][step]
                self.check(batch, expected, "as it came")
                if get_worker_info() is not None:
                    self.wrong.append("a training thread is no worker")
                (kept.append if chance.random() < 0.5 else self.dropped.put)((batch, expected))
                step += 1
                if step == left_at:
                    break
                while len(kept) > chance.randrange(1, 20):
                    self.check(*kept.pop(chance.randrange(len(kept))), "after a while")
            if step == left_at:
                break
        else:
            if step != len(self.expected[kind]):
                self.wrong.append("batches are missing")
        loader.close()
        for batch, expected in kept:
            self.check(batch, expected, "after the end")

    def drop(self) -> None:
        while (item := self.dropped.get()) is not None:
            self.check(*item, "in another thread")
            del item

    def check(self, batch: Any, expected: list[Any], when: str) -> None:
        if flat(batch) != expected:
            self.wrong.append(f"another batch {when}")


def test_training_threads_with_worker_threads_get_the_batches_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial()
    monkeypatch.setattr(sys, "unraisablehook", trial.wrong.append)
    monkeypatch.setattr(threading, "excepthook", trial.wrong.append)
    training = [threading.Thread(target=trial.train, args=(number,)) for number in range(3)]
    dropping = [threading.Thread(target=trial.drop) for _ in range(2)]
    for thread in (*training, *dropping):
        thread.start()
    for thread in training:
        thread.join()
    for _ in dropping:
        trial.dropped.put(None)
    for thread in dropping:
        thread.join()
    assert not trial.wrong


def test_a_loader_without_a_cache_does_not_import_what_brings_the_interpreter_lock_back() -> None:
    script = (
        "import sys, stoker\n"
        "from torch.utils.data import TensorDataset\n"
        "import torch\n"
        "list(stoker.DataLoader(TensorDataset(torch.arange(8)), num_workers=2, workers='threads', seed=1))\n"
        "assert 'lmdb' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
