"""Hugging Face's streams: epochs after a restart, another number of workers, and SIGKILL from outside at any moment."""

import json
import multiprocessing
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*os.fork")
COUNT, BATCH, SHARDS = 96, 4, 6
DEADLINE_S = 120.0


def stream(first: int = 0, shards: int = SHARDS) -> Any:
    numbers = range(first, first + shards * COUNT // SHARDS)
    return datasets.Dataset.from_dict({"n": list(numbers)}).to_iterable_dataset(num_shards=shards)


def numbers(firsts: list[int]) -> Any:
    for first in firsts:
        for number in range(first, first + COUNT // SHARDS):
            yield {"n": number}


def doubled(examples: Any) -> Any:
    return {"n": examples["n"], "twice": [2 * number for number in examples["n"]]}


KINDS: dict[str, Callable[[], Any]] = {
    "plain": stream,
    "untyped": lambda: datasets.IterableDataset.from_generator(numbers, gen_kwargs={"firsts": list(range(0, COUNT, 16))}),
    "shuffled": lambda: stream().shuffle(seed=3, buffer_size=10),
    "batched": lambda: stream().map(doubled, batched=True, batch_size=5),
    "concatenated": lambda: datasets.concatenate_datasets([stream(0, 3), stream(COUNT // 2, 3)]),
}


def make(kind: str, num_workers: int, **options: Any) -> Any:
    return stoker.DataLoader(KINDS[kind](), batch_size=BATCH, num_workers=num_workers, **options)


def numbers_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["n"].tolist()]


@pytest.mark.parametrize("kind", ["plain", "shuffled", "concatenated"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_epochs_after_the_one_that_went_on_are_whole(kind: str, workers: int, persistent: bool) -> None:
    loader = make(kind, workers, persistent_workers=persistent)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    expected = numbers_of(iterator)
    other = make(kind, workers, persistent_workers=persistent)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert numbers_of(other) == expected
    second = iter(other)
    at_its_start = other.state_dict()
    assert sorted(numbers_of(second)) == list(range(COUNT))
    third = make(kind, workers, persistent_workers=persistent)
    third.load_state_dict(at_its_start)
    assert sorted(numbers_of(third)) == list(range(COUNT))
    third.load_state_dict(other.state_dict())  # between two epochs
    assert sorted(numbers_of(third)) == list(range(COUNT))


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_persistent_workers_hear_of_an_epoch_that_is_set(workers: str) -> None:
    options: dict[str, Any] = {"num_workers": 2, "workers": workers, "persistent_workers": True}
    loader, other = make("plain", **options), make("plain", **options)
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
        expected = numbers_of(iterator)
    other.dataset.set_epoch(1)
    other.load_state_dict(state)
    assert numbers_of(other) == expected


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "untyped", "shuffled", "batched"])
def test_another_number_of_workers_at_every_restart(kind: str, every: int, workers: str) -> None:
    seen: list[int] = []
    state = None
    for number, batches in ((2, 5), (3, 4), (1, 2), (0, 3), (4, 6), (2, 1000)):
        by = workers if number else "processes"
        with make(kind, number, workers=by, snapshot_every_n_steps=every if number == 2 else 1) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            seen += numbers_of(islice(iterator, batches))
            state = json.loads(json.dumps(loader.state_dict()))
    assert sorted(seen) == list(range(COUNT))


def test_more_workers_share_what_one_had() -> None:
    loader = make("plain", 1)
    next(iter(loader))
    other = make("plain", 3)
    other.load_state_dict(loader.state_dict())
    first_batches = [batch["n"].tolist() for batch in islice(other, 3)]
    assert first_batches == [[4, 5, 6, 7], [16, 17, 18, 19], [32, 33, 34, 35]]


def train(folder: Path) -> None:
    """See the rest of the stream, and write down after each batch what was seen, with the loader's state."""
    loader = make("shuffled", 2)
    saved, seen = folder / "saved.json", []
    if saved.exists():
        read = json.loads(saved.read_text())
        seen = read["seen"]
        loader.load_state_dict(read["state"])
    for batch in loader:
        seen.append(batch["n"].tolist())
        (folder / "next").write_text(json.dumps({"seen": seen, "state": loader.state_dict()}))
        (folder / "next").rename(saved)


def kill_when(process: Any, folder: Path, batches: int) -> None:
    """End a process by SIGKILL when it has seen so many batches."""
    saved, deadline = folder / "saved.json", time.monotonic() + DEADLINE_S
    while process.is_alive() and batches > (len(json.loads(saved.read_text())["seen"]) if saved.exists() else 0):
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    process.kill()
    process.join()


def test_killed_from_outside_at_twenty_moments(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = [batch["n"].tolist() for batch in make("shuffled", 2)]
    fork = multiprocessing.get_context("fork")
    for moment in range(20):
        process = fork.Process(target=train, args=(tmp_path,))
        process.start()
        kill_when(process, tmp_path, moment)  # the first one before anything was seen
    last = fork.Process(target=train, args=(tmp_path,))
    last.start()
    last.join()
    assert last.exitcode == 0
    assert json.loads((tmp_path / "saved.json").read_text())["seen"] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batches_of_a_later_epoch_between_two_states(workers: int) -> None:
    options: dict[str, Any] = {"persistent_workers": workers > 0, "snapshot_every_n_steps": 7}
    loader = make("plain", workers, **options)
    expected = numbers_of(loader)
    between = loader.state_dict()
    seen: list[int] = []
    for _ in range(4):  # each goes on from what the one before went on from
        loader = make("plain", workers, **options)
        loader.load_state_dict(between)
        iterator = iter(loader)
        loader.load_state_dict(loader.state_dict())
        iterator = iter(loader)
        seen += numbers_of(islice(iterator, 1))
        between = loader.state_dict()
    other = make("plain", workers + 1)  # another number
    other.load_state_dict(between)
    assert sorted(seen + numbers_of(other)) == sorted(expected) == list(range(COUNT))
