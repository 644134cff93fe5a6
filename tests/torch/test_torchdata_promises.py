"""What torchdata's documentation promises of its loader, shown for ours. docs/compatibility.md has what differs."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.streams import Items, Plain, StatefulItems, StatefulIterator, StatefulSampler, StatefulStream
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import stoker
from stoker.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital' is deprecated")
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def listed(batch: Any) -> Any:
    return [listed(part) for part in batch] if isinstance(batch, list | tuple) else batch.tolist()


def rest_after(loader: Any, batches: int) -> tuple[dict[str, Any], list[Any]]:
    """The state after so many batches, and the batches after it."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = loader.state_dict()
    return state, [listed(batch) for batch in iterator]


def test_all_arguments_are_the_same() -> None:
    theirs = inspect.signature(StatefulDataLoader.__init__).parameters
    ours = inspect.signature(stoker.DataLoader.__init__).parameters
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


def test_it_is_a_loader_of_torchs() -> None:
    assert isinstance(stoker.DataLoader(Items(3)), DataLoader)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": -1},
        {"persistent_workers": True},
    ],
)
def test_arguments_that_it_refuses_are_refused(wrong: dict[str, Any]) -> None:
    for kind in (StatefulDataLoader, stoker.DataLoader):
        with pytest.raises(ValueError, match="option"):
            kind(Items(3), **wrong)


def test_a_shuffled_stream_is_refused() -> None:
    for kind in (StatefulDataLoader, stoker.DataLoader):
        with pytest.raises(ValueError, match="shuffle"):
            kind(StatefulStream(3), shuffle=True)


@WORKERS
@pytest.mark.parametrize("dataset", [Items(20), Plain(20), StatefulStream(20), StatefulIterator(20), StatefulItems(20)])
def test_a_new_loader_goes_on_in_the_middle_of_the_epoch(dataset: Any, workers: int) -> None:
    torch.manual_seed(2)
    make = type(dataset)
    state, expected = rest_after(stoker.DataLoader(make(20), 2, num_workers=workers), 3)
    other = stoker.DataLoader(make(20), 2, num_workers=workers)
    other.load_state_dict(state)
    assert [listed(batch) for batch in other] == expected


@WORKERS
def test_states_are_of_the_latest_iterator_and_for_the_next(workers: int) -> None:
    loader = stoker.DataLoader(Items(12), 2, num_workers=workers)
    first = iter(loader)
    [next(first) for _ in range(4)]
    second = iter(loader)
    next(second)
    assert loader.state_dict()["_num_yielded"] == 1
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert listed(next(second))[0] == [2, 3]  # an iterator that lives is left alone
    assert [listed(batch)[0] for batch in loader] == [[k, k + 1] for k in range(2, 12, 2)]
    assert len(list(loader)) == 6  # the epoch after it is whole


@WORKERS
def test_the_number_of_batches_is_in_the_state_and_the_sampler_is_passed_by(workers: int) -> None:
    fetched: list[int] = []

    class Noting(Items):
        def __getitem__(self, index: int) -> Any:
            fetched.append(index)
            return index

    loader = stoker.DataLoader(Noting(10), 2, num_workers=workers)
    state, _ = rest_after(loader, 3)
    assert state["_num_yielded"] == state["_sampler_iter_yielded"] == 3
    fetched.clear()
    other = stoker.DataLoader(Noting(10), 2)
    other.load_state_dict(state)
    assert [listed(batch) for batch in other] == [[6, 7], [8, 9]] and fetched == [6, 7, 8, 9]


class Limited(Sampler[int]):
    """The sampler that torchdata's documentation describes: random indices, and how many were given."""

    def __init__(self) -> None:
        self.given = 0
        self.draws = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[int]:
        while self.given < 10:
            self.given += 1
            yield int(torch.randint(5, (1,), generator=self.draws))

    def __len__(self) -> int:
        return 10

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "draws": self.draws.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]
        self.draws.set_state(state["draws"])


class Noisy(Dataset[float]):
    """The dataset that it describes: its state in each worker is the generator of its augmentations."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> float:
        return index + float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])


@WORKERS
def test_a_stateful_sampler_with_a_map_style_dataset_whose_workers_have_states(workers: int) -> None:
    loader = stoker.DataLoader(Noisy(), 2, sampler=Limited(), num_workers=workers)
    state, expected = rest_after(loader, 3)
    assert len(expected) == 2
    loader.load_state_dict(state)  # the same loader goes back
    assert [listed(batch) for batch in loader] == expected


class Permuted(IterableDataset[Any]):
    """The stream that it describes: a part of a permutation for each worker, and a place in it."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        own = torch.randperm(12, generator=torch.Generator().manual_seed(0))[number::workers]
        for index in range(self.place, len(own)):
            self.place += 1
            yield own[index]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


@WORKERS
def test_a_stream_with_a_state_in_each_worker(workers: int) -> None:
    loader = stoker.DataLoader(Permuted(), 2, num_workers=workers)
    state, expected = rest_after(loader, 3)
    assert len(expected) == 3
    loader.load_state_dict(state)
    assert [listed(batch) for batch in loader] == expected


def test_the_same_number_of_workers_is_required() -> None:
    state, _ = rest_after(stoker.DataLoader(Permuted(), 2, num_workers=2), 3)
    with pytest.raises(ConfigError, match="num_workers=2"):
        stoker.DataLoader(Permuted(), 2, num_workers=1).load_state_dict(state)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_how_often_states_are_transferred_does_not_change_what_resumes(steps: int) -> None:
    options: dict[str, Any] = {"num_workers": 2, "snapshot_every_n_steps": steps}
    state, expected = rest_after(stoker.DataLoader(Permuted(), 1, **options), 7)
    other = stoker.DataLoader(Permuted(), 1, **options)
    other.load_state_dict(state)
    assert [listed(batch) for batch in other] == expected
    assert sum(worker["batches"] for worker in state["streams"]["states"]) == 7


@WORKERS
def test_the_default_random_sampler_resumes(workers: int) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(6)
        return stoker.DataLoader(Items(20), 3, shuffle=True, num_workers=workers, generator=generator)

    state, expected = rest_after(make(), 2)
    other = make()
    other.load_state_dict(state)
    assert [listed(batch) for batch in other] == expected


def test_persistent_workers_keep_their_datasets() -> None:
    loader = stoker.DataLoader(StatefulStream(8), 2, num_workers=1, persistent_workers=True)
    assert [listed(batch)[1][0] for _ in range(2) for batch in loader] == [0] * 4 + [1] * 4


@WORKERS
def test_an_epoch_that_is_over_resumes_with_the_next(workers: int) -> None:
    loader = stoker.DataLoader(StatefulStream(8), 2, num_workers=workers)
    whole = [listed(batch)[0] for batch in loader]
    other = stoker.DataLoader(StatefulStream(8), 2, num_workers=workers)
    other.load_state_dict(loader.state_dict())
    assert [listed(batch)[0] for batch in other] == whole


def test_without_order_ours_resumes_though_torchdata_promises_nothing() -> None:
    options: dict[str, Any] = {"num_workers": 2, "in_order": False}
    state, expected = rest_after(stoker.DataLoader(Permuted(), 2, **options), 3)
    other = stoker.DataLoader(Permuted(), 2, **options)
    other.load_state_dict(state)
    assert sorted(listed(batch) for batch in other) == sorted(expected)


@pytest.mark.parametrize("state", [{}, None, [1]])
def test_ours_refuses_a_state_that_is_none(state: Any) -> None:
    with pytest.raises(ConfigError, match="not the state"):
        stoker.DataLoader(Items(4)).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_ours_refuses_a_damaged_state_when_it_is_loaded(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers}
    state, _ = rest_after(stoker.DataLoader(StatefulStream(20), **options), 3)
    theirs, _ = rest_after(StatefulDataLoader(StatefulStream(20), **options), 3)
    part, other = state["streams"], stoker.DataLoader(StatefulStream(20), **options)
    streams = [None, "x", {**part, "states": []}, {**part, "states": "ab"}, {**part, "next_worker": "1"}]
    streams += [{**part, "states": [{} for _ in part["states"]]}, {**part, "workers": None}]
    streams.append({**part, "states": [{**one, "since": -3} for one in part["states"]]})
    damaged = [{**state, "streams": each} for each in streams]
    damaged += [{name: state[name] for name in state if name != missing} for missing in ("samples", "_num_yielded")]
    damaged.append({name: theirs[name] for name in theirs if name not in ("_num_yielded", "_steps_since_snapshot")})
    for each in damaged:
        with pytest.raises(ConfigError, match="damaged"):
            other.load_state_dict(each)
    other.load_state_dict(state)


def test_ours_starts_no_workers_to_tell_a_state() -> None:
    loader = stoker.DataLoader(StatefulSampler(4), num_workers=1)  # type: ignore[arg-type]
    assert loader.state_dict()["_num_yielded"] == 0 and loader._iterator is None


def test_ours_keeps_a_stream_that_has_ended_at_its_end() -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 2}
    state, expected = rest_after(stoker.DataLoader(StatefulStream(20), **options), 8)
    other = stoker.DataLoader(StatefulStream(20), **options)
    assert [worker["ended"] for worker in state["streams"]["states"]] == [False, True] and len(expected) == 1
    other.load_state_dict(state)
    assert [listed(batch) for batch in other] == expected


def test_the_length_of_a_stream_is_an_estimate() -> None:
    class Sized(Plain):
        def __len__(self) -> int:
            return 20

    assert len(stoker.DataLoader(Sized(20), 3)) == len(StatefulDataLoader(Sized(20), 3)) == 7
