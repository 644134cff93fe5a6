"""States of streams, datasets and samplers: resumed anywhere, a run goes on exactly as the uninterrupted one."""

import copy
import itertools
import json
import multiprocessing
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.streams import (
    Items,
    IteratorSampler,
    OwnIterator,
    Plain,
    ResumesOnce,
    SaysNone,
    StatefulItems,
    StatefulIterator,
    StatefulSampler,
    StatefulStream,
)
from tests.tries import until
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import stoker
from stoker.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital' is deprecated")

COUNT = 23
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "stateful stream": lambda: {"dataset": StatefulStream(COUNT)},
    "stateful iterator": lambda: {"dataset": StatefulIterator(COUNT)},
    "its own iterator": lambda: {"dataset": OwnIterator(COUNT)},
    "resumes once": lambda: {"dataset": ResumesOnce(COUNT)},
    "no state": lambda: {"dataset": Plain(COUNT)},
    "a state that is None": lambda: {"dataset": SaysNone(COUNT)},
    "stateful sampler": lambda: {"dataset": Items(COUNT), "sampler": StatefulSampler(COUNT)},
    "stateful iterator of a sampler": lambda: {"dataset": Items(COUNT), "sampler": IteratorSampler(COUNT)},
}
END = "end of the epoch"


def make(kind: str, **options: Any) -> Any:
    named: dict[str, Any] = {"batch_size": 2, "generator": torch.Generator().manual_seed(4), **KINDS[kind](), **options}
    return stoker.DataLoader(**named)


def listed(batch: Any) -> Any:
    return [part.tolist() if torch.is_tensor(part) else part for part in batch]


def rest(loader: Any, epochs: range) -> list[Any]:
    found = []
    for epoch in epochs:
        found += [(epoch, listed(batch)) for batch in loader]
        found.append((epoch, END))
    return found


def resumed_everywhere(kind: str, epochs: int, stride: int = 1, **options: Any) -> None:
    """Two epochs with a state after every batch, and from every `stride`-th of these the rest of the run again."""
    loader = make(kind, **options)
    states, seen = [loader.state_dict()], []
    for epoch in range(epochs):
        for batch in loader:
            seen.append((epoch, listed(batch)))
            states.append(loader.state_dict())
        seen.append((epoch, END))
        states.append(loader.state_dict())
    loader.close()
    is_ordered = options.get("in_order", True) or not options.get("num_workers")
    # Generators of a worker that nobody's state holds go on through the epochs of a persistent worker.
    # Those of threads belong to the whole process.
    draws = options.get("persistent_workers") or options.get("workers") == "threads"
    columns = 2 if draws and kind in ("no state", "a state that is None", "stateful iterator") else 3
    for at in range(0, len(states), stride):
        with make(kind, **options) as other:
            other.load_state_dict(states[at])
            epoch = sum(batch == END for _, batch in seen[:at])
            got, expected = (cut(found, columns) for found in (rest(other, range(epoch, epochs)), seen[at:]))
        if not is_ordered:
            got, expected = sorted(map(str, got)), sorted(map(str, expected))
        assert got == expected, (at, states[at].get("streams"))


def cut(found: list[Any], columns: int) -> list[Any]:
    return [(epoch, batch if batch == END else batch[:columns]) for epoch, batch in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [None, 1, 4])
def test_without_workers(kind: str, size: int | None) -> None:
    resumed_everywhere(kind, 2, batch_size=size)


@pytest.mark.parametrize("kind", KINDS)
def test_with_workers(kind: str) -> None:
    resumed_everywhere(kind, 1, 2, num_workers=2, snapshot_every_n_steps=3)


@pytest.mark.parametrize("kind", ["stateful stream", "its own iterator", "resumes once", "stateful sampler"])
def test_with_persistent_workers(kind: str) -> None:
    resumed_everywhere(kind, 2, 3, num_workers=2, persistent_workers=True, snapshot_every_n_steps=7)


@pytest.mark.parametrize("kind", ["stateful stream", "no state", "stateful sampler"])
def test_in_no_order(kind: str) -> None:
    resumed_everywhere(kind, 1, 3, num_workers=3, in_order=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("in_order", [False, True])
def test_with_threads(kind: str, persistent: bool, workers: int, in_order: bool) -> None:
    options: dict[str, Any] = {"workers": "threads", "num_workers": workers, "in_order": in_order}
    resumed_everywhere(kind, 2, 2, persistent_workers=persistent, snapshot_every_n_steps=3, **options)


class Uncopyable(StatefulStream):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("an open file")


def test_each_thread_has_a_dataset_of_its_own() -> None:
    owners = []
    stream = StatefulStream(COUNT)
    options: dict[str, Any] = {"num_workers": 2, "workers": "threads"}
    loader = stoker.DataLoader(stream, 2, worker_init_fn=lambda _: owners.append(get_worker_info().dataset), **options)
    assert sorted(number for batch in loader for number in listed(batch)[0]) == sorted([*range(0, 23, 2), *range(1, 18, 2)])
    assert len({id(one) for one in [*owners, stream]}) == 3 and stream.place == 0
    with pytest.raises(ConfigError, match="an open file"):
        iter(stoker.DataLoader(Uncopyable(COUNT), **options))


@pytest.mark.parametrize("by", ["processes", "threads"])
@pytest.mark.parametrize("kind", ["stateful stream", "no state"])
def test_another_thread_asks_for_states_and_does_not_disturb_the_loop(by: str, kind: str) -> None:
    expected = rest(make(kind, num_workers=2, workers=by), range(1))
    for _ in range(5):
        loader = make(kind, num_workers=2, workers=by)
        iterator = iter(loader)
        asking = [threading.Thread(target=loader.state_dict) for _ in range(3)]
        for thread in asking:
            thread.start()
        seen = [(0, listed(batch)) for batch in iterator]
        for thread in asking:
            thread.join(20)
        assert not any(thread.is_alive() for thread in asking)
        assert cut(seen, 2) == cut(expected[:-1], 2)


def fail(worker: int) -> None:
    raise ValueError(f"worker {worker} cannot begin")


@pytest.mark.parametrize("by", ["processes", "threads"])
def test_a_state_of_workers_that_cannot_begin_does_not_hang(by: str) -> None:
    loader = make("stateful stream", num_workers=2, workers=by, worker_init_fn=fail)
    iterator = iter(loader)
    loader.state_dict()
    with pytest.raises(ValueError, match="cannot begin"):
        next(iterator)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["processes", "threads"])
@pytest.mark.parametrize("workers", range(4))
def test_all_of_them(kind: str, workers: int, by: str) -> None:
    orders = (True, False) if workers else (True,)
    for every, in_order, persistent in itertools.product((1, 3, 7, None), orders, {False, workers > 0}):
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent, "in_order": in_order}
        resumed_everywhere(kind, 2, snapshot_every_n_steps=every, workers=by, **options)


@pytest.mark.parametrize("kind", ["stateful stream", "stateful iterator"])
@pytest.mark.parametrize("method", ["spawn"])
def test_workers_that_inherit_nothing(kind: str, method: str) -> None:
    resumed_everywhere(kind, 1, 9, num_workers=1, multiprocessing_context=method)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_style_dataset_has_its_state_in_each_worker(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "snapshot_every_n_steps": 5}
    loader = stoker.DataLoader(StatefulItems(20), **options)
    iterator = iter(loader)
    [next(iterator) for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    expected = [listed(batch) for batch in iterator]
    other = stoker.DataLoader(StatefulItems(20), **options)
    other.load_state_dict(state)
    assert [listed(batch) for batch in other] == expected


def test_loading_twice_and_while_an_iterator_lives() -> None:
    loader = make("stateful stream", num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    states = [loader.state_dict() for _ in map(next, [iterator] * 4)]
    expected = [listed(batch) for batch in iterator]
    loader.load_state_dict(states[1])
    loader.load_state_dict(states[3])
    assert loader.state_dict() == states[3]
    assert [listed(batch) for batch in loader] == expected


def test_states_are_what_the_dataset_gave_and_not_what_it_has_become() -> None:
    loader = make("stateful stream", num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["streams"]["states"][0]["dataset"]["place"] == 2
    [next(iterator) for _ in range(3)]
    assert state["streams"]["states"][0]["dataset"]["place"] == 2
    assert json.loads(json.dumps(state)) == state


def test_what_was_prepared_ahead_does_not_count() -> None:
    loader = make("stateful stream", num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    next(iterator)
    assert [state["dataset"]["place"] for state in loader.state_dict()["streams"]["states"]] == [2, 0]


def test_another_number_of_workers_is_refused_for_streams_and_not_for_others() -> None:
    loader = make("stateful stream", num_workers=2)
    next(iter(loader))
    with pytest.raises(ConfigError, match="num_workers=2"):
        make("stateful stream", num_workers=1).load_state_dict(loader.state_dict())
    sampled = make("stateful sampler", num_workers=2)
    iterator = iter(sampled)
    next(iterator)
    other = make("stateful sampler")
    other.load_state_dict(sampled.state_dict())
    assert rest(other, range(1)) == [*((0, listed(batch)) for batch in iterator), (0, END)]


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_intervals_that_are_none(steps: Any) -> None:
    with pytest.raises(ConfigError, match="snapshot_every_n_steps"):
        stoker.DataLoader(Items(4), snapshot_every_n_steps=steps)


class Failing(StatefulStream):
    def __init__(self, where: str) -> None:
        super().__init__(COUNT)
        self.where = where

    def state_dict(self) -> dict[str, Any]:
        if self.where == "state" and self.place == 4:
            raise KeyError("no state today")
        return {**super().state_dict(), **({"bad": lambda: 0} if self.where == "pickle" and self.place == 4 else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.where == "load":
            raise KeyError("not loaded")
        super().load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_dataset_reach_the_user(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers}
    loader = stoker.DataLoader(Failing("load"), **options)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(KeyError, match="not loaded"):
        next(iter(loader))
    loader = stoker.DataLoader(Failing("state"), **options)
    with pytest.raises(KeyError, match="no state today"):
        for _ in loader:
            loader.state_dict()


class Stateless(StatefulStream):
    """Can never tell its state."""

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("no state ever")


def test_a_loop_that_goes_on_after_errors_of_states_ends() -> None:
    iterator = iter(stoker.DataLoader(Stateless(COUNT), batch_size=2, num_workers=1))
    outcomes = []
    while len(outcomes) < 10 * COUNT:
        try:
            next(iterator)
        except KeyError as error:
            assert "no state ever" in str(error)
            outcomes.append("error")
        except StopIteration:
            outcomes.append("end")
            break
    assert set(outcomes[:-1]) == {"error"} and outcomes[-1] == "end"


def test_a_state_that_cannot_be_pickled_is_an_error_and_no_hang() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        list(stoker.DataLoader(Failing("pickle"), batch_size=2, num_workers=1))


class Broken(Plain):
    """Fails once in the middle."""

    def __iter__(self) -> Any:
        return _FailsOnce(iter(range(COUNT)))


class _FailsOnce:
    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        number: int = next(self.numbers)
        if number == 5:
            raise ValueError("five")
        return number


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_was_seen_is_not_seen_again(workers: int) -> None:
    def loader() -> Any:
        return stoker.DataLoader(Broken(COUNT), batch_size=2, num_workers=workers)

    first = loader()
    iterator = iter(first)
    [next(iterator) for _ in range(2)]
    with pytest.raises(ValueError, match="five"):
        next(iterator)
    next(iterator)
    state = first.state_dict()
    expected = [batch.tolist() for batch in iterator]
    other = loader()
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == expected


class LoadsLate(Plain):
    """Loads its state with its first item, and cannot."""

    state: Any = None

    def __iter__(self) -> Any:
        if self.state is not None:
            Failing("load").load_state_dict(self.state)
        yield from range(COUNT)

    def state_dict(self) -> dict[str, Any]:
        return {"place": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_state_that_cannot_be_loaded_is_an_error_also_while_batches_are_passed_by() -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 1, "snapshot_every_n_steps": 3}
    loader = stoker.DataLoader(LoadsLate(COUNT), **options)
    iterator = iter(loader)
    [next(iterator) for _ in range(4)]
    state = loader.state_dict()
    assert state["streams"]["states"][0]["since"] == 1
    other = stoker.DataLoader(LoadsLate(COUNT), **options)
    other.load_state_dict(state)
    with pytest.raises(KeyError, match="not loaded"):
        next(iter(other))


class Drawing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(12))


def mixed(samples: list[int]) -> list[float]:
    return [sample + random.random() for sample in samples]


def test_collation_that_draws_is_repeated_while_batches_are_passed_by() -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 1, "collate_fn": mixed}
    torch.manual_seed(3)
    loader = stoker.DataLoader(Drawing(), **options)
    iterator = iter(loader)
    [next(iterator) for _ in range(2)]
    other = stoker.DataLoader(Drawing(), **options)
    other.load_state_dict(loader.state_dict())
    assert list(other) == list(iterator)


class Buffered(IterableDataset[Any]):
    """Has a large state."""

    def __init__(self, size: int) -> None:
        self.buffer = np.arange(size, dtype=np.uint8)
        self.place = 0

    def __iter__(self) -> Any:
        info = get_worker_info()
        while self.place < 40:
            self.place += 1
            self.buffer[:4] = self.place
            yield self.place + (0 if info is None else 1000 * info.id)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "buffer": self.buffer, "tensor": torch.from_numpy(self.buffer)[:8]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["buffer"][:4].tolist() == [state["place"] % 256] * 4 == state["tensor"][:4].tolist()
        self.place, self.buffer = state["place"], np.array(state["buffer"])


def test_large_states_travel_through_shared_memory() -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
    loader = stoker.DataLoader(Buffered(1 << 20), **options)
    iterator = iter(loader)
    states = []
    for _ in range(9):
        next(iterator)
        states.append(loader.state_dict())
    expected = [batch.tolist() for batch in iterator]
    for state in (states[-1], copy.deepcopy(states[-1])):
        other = stoker.DataLoader(Buffered(1 << 20), **options)
        other.load_state_dict(state)
        assert [batch.tolist() for batch in other] == expected


made, asked = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)


class Counting(Buffered):
    """Counts, for all processes, how many samples it made and how often it was asked for its state."""

    def __iter__(self) -> Any:
        for sample in super().__iter__():
            made.value += 1
            yield sample

    def state_dict(self) -> dict[str, Any]:
        asked.value += 1
        return super().state_dict()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_large_state_is_not_asked_for_while_the_loop_holds_two(kind: Literal["processes", "threads"]) -> None:
    made.value = asked.value = 0
    loader = stoker.DataLoader(Counting(1 << 20), batch_size=1, num_workers=1, workers=kind, prefetch_factor=20)
    iterator = iter(loader)
    until(lambda: made.value == 20)  # all that is prefetched is made, and nothing is taken
    assert asked.value <= 4  # at the beginning, and after the first batches
    assert [batch.item() for batch in iterator] == list(range(1, 41))


def test_large_states_that_are_held_to_the_end_print_nothing() -> None:
    script = """
import numpy as np, stoker, torch
class Large(torch.utils.data.IterableDataset):
    def __init__(self): self.place, self.buffer = 0, np.zeros(1 << 20, np.uint8)
    def __iter__(self):
        while self.place < 40:
            self.place += 1
            yield self.place
    def state_dict(self): return {"place": self.place, "buffer": self.buffer}
    def load_state_dict(self, state): self.__dict__.update(state)
loader = stoker.DataLoader(Large(), batch_size=2, num_workers=2)
iterator = iter(loader)
next(iterator)
state = loader.state_dict()
loader.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_copies_of_a_loader_have_its_position() -> None:
    loader = make("stateful stream", num_workers=1)
    iterator = iter(loader)
    next(iterator)
    assert pickle.loads(pickle.dumps(loader)).state_dict() == loader.state_dict()


def test_the_position_outlives_its_iterator_and_close() -> None:
    for workers in (0, 1):
        loader = make("stateful stream", num_workers=workers)
        for _ in loader:
            break
        state = loader.state_dict()
        loader.close()
        assert loader.state_dict() == state
        assert state["streams"]["states"][0]["dataset"]["place"] == 2


class TestTorchdatas:
    """What StatefulDataLoader wrote is gone on with."""

    @pytest.mark.parametrize("kind", ["stateful stream", "stateful iterator", "no state", "stateful sampler"])
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("every", [1, 3])
    def test_streams_and_samplers(self, kind: str, workers: int, every: int) -> None:
        theirs: Any = StatefulDataLoader(
            **{"batch_size": 2, **KINDS[kind]()}, num_workers=workers, snapshot_every_n_steps=every
        )
        iterator = iter(theirs)
        [next(iterator) for _ in range(5)]
        state = theirs.state_dict()
        expected = cut([(0, listed(batch)) for batch in iterator], 2)
        ours = make(kind, num_workers=workers)
        ours.load_state_dict(state)
        assert cut([(0, listed(batch)) for batch in ours], 2) == expected
        assert ours.state_dict()["version"] == 1

    @pytest.mark.parametrize("workers", [0, 2])
    def test_shuffled(self, workers: int) -> None:
        theirs: Any = StatefulDataLoader(Items(COUNT), batch_size=2, shuffle=True, num_workers=workers)
        iterator = iter(theirs)
        [next(iterator) for _ in range(5)]
        state = theirs.state_dict()
        expected = [listed(batch) for batch in iterator]
        ours = stoker.DataLoader(Items(COUNT), batch_size=2, shuffle=True, num_workers=workers)
        ours.load_state_dict(state)
        assert [listed(batch) for batch in ours] == expected

    @pytest.mark.parametrize("workers", [0, 2])
    def test_its_distributed_sampler(self, workers: int) -> None:
        def sampled() -> dict[str, Any]:
            return {"dataset": Items(20), "sampler": StatefulDistributedSampler(Items(20), 2, 1), "batch_size": 3}

        loader = stoker.DataLoader(**sampled(), num_workers=workers)
        seen, states = [], [loader.state_dict()]
        for _ in range(2):
            for batch in loader:
                seen.append(listed(batch))
                states.append(loader.state_dict())
        for at in (0, 1, 4, 5, 8):
            other = stoker.DataLoader(**sampled(), num_workers=workers)
            other.load_state_dict(states[at])
            assert [listed(batch) for _ in range(2 if at <= 4 else 1) for batch in other] == seen[at:]


class Keeping(torch.utils.data.IterableDataset[int]):
    """Its state is one object, which it keeps, gives and changes."""

    def __init__(self) -> None:
        self.place = {"next": 0}

    def __iter__(self) -> Iterator[int]:
        while self.place["next"] < 12:
            self.place["next"] += 1
            yield self.place["next"]

    def state_dict(self) -> dict[str, int]:
        return self.place

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_may_keep_and_change_its_state(workers: int) -> None:
    loader = stoker.DataLoader(Keeping(), batch_size=2, num_workers=workers)
    states = [loader.state_dict()]
    batches = []
    for batch in loader:
        batches.append(listed(batch))
        states.append(loader.state_dict())
    for at in (0, 1, 3):
        other = stoker.DataLoader(Keeping(), batch_size=2, num_workers=workers)
        other.load_state_dict(states[at])
        assert [listed(batch) for batch in other] == batches[at:]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["processes", "threads"])
@pytest.mark.parametrize("again", [False, True])
def test_later_epochs_of_persistent_workers_resume(own: bool, kind: str, again: bool) -> None:
    def make() -> Any:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(9) if own else None
        options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "workers": kind, "generator": generator}
        return stoker.DataLoader(Items(COUNT), batch_size=2, shuffle=True, **options)

    first = make()
    states = []
    batches: list[list[Any]] = []
    for _ in range(3):
        batches.append([])
        for batch in first:
            batches[-1].append(listed(batch))
            states.append((len(batches) - 1, len(batches[-1]), copy.deepcopy(first.state_dict())))
    last = len(batches[0])
    other = make()
    for epoch, seen, state in [states[2], states[last + 3], states[2 * last + 5]]:
        other = other if again else make()
        torch.manual_seed(77)
        other.load_state_dict(state)
        assert [listed(batch) for batch in other] == batches[epoch][seen:], epoch
    if own:  # between epochs
        other = make()
        other.load_state_dict(states[last - 1][2])
        assert [listed(batch) for batch in other] == []
        assert [listed(batch) for batch in other] == batches[1]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_between_epochs_of_persistent_workers_no_further_seed_is_drawn(own: bool, kind: str) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(9) if own else None
        options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "workers": kind, "generator": generator}
        return stoker.DataLoader(Items(COUNT), batch_size=2, shuffle=True, **options)

    torch.manual_seed(5)
    first = make()
    _ = list(first)
    state, drawn = first.state_dict(), torch.get_rng_state()
    expected = [listed(batch) for _ in range(2) for batch in first]
    after = torch.get_rng_state()
    other = make()
    other.load_state_dict(state)
    torch.set_rng_state(drawn)
    assert [listed(batch) for _ in range(2) for batch in other] == expected
    assert torch.equal(torch.get_rng_state(), after)
