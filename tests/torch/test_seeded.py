"""With a seed: who prepares a batch never changes it, and a state goes on exactly where it was taken."""

import json
import random
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.datasets import Augmented, BulkSamples, DrawsNow, Numbers, Samples, Stream, WithRng, mix_up
from tests.torch.test_differential import assert_same
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

import stoker
from stoker.errors import ConfigError

EPOCHS = 3


def run(loader: Any, steps: int | None = None, epochs: int = EPOCHS, into: list[Any] | None = None) -> list[Any]:
    """Batches of all epochs, or so many."""
    seen: list[Any] = [] if into is None else into
    for _ in range(epochs):
        for batch in loader:
            seen.append(batch)
            if steps is not None and len(seen) == steps:
                return seen
    return seen


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    count = draw(st.integers(1, 13))
    options: dict[str, Any] = {"seed": draw(st.integers(0, 2**40)), "drop_last": draw(st.booleans())}
    options["batch_size"] = draw(st.sampled_from([None, 1, 2, 3, 5]))
    if options["batch_size"] is None:
        options["drop_last"] = False
    elif draw(st.booleans()):
        options["collate_fn"] = mix_up
    dataset = draw(st.sampled_from([Augmented, WithRng, DrawsNow, Numbers]))(count)
    order = draw(st.sampled_from(["shuffle", "sequence", "distributed", "weighted", "replacement", "list"]))
    if order == "shuffle":
        options["shuffle"] = True
    elif order == "distributed":
        rank, world = draw(st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]))
        options["sampler"] = DistributedSampler(dataset, world, rank, shuffle=draw(st.booleans()), seed=3)
    elif order == "weighted":
        options["sampler"] = WeightedRandomSampler([1.0 + n for n in range(count)], count + 2)
    elif order == "replacement":
        options["sampler"] = RandomSampler(dataset, replacement=True, num_samples=count + 3)
    elif order == "list":
        options["sampler"] = list(range(count))[::-1]
    if isinstance(dataset, WithRng) and options.get("collate_fn") is not mix_up:
        kinds = [(0, "processes"), (1, "processes"), (2, "processes"), (2, "threads"), (1, "threads")]
    else:
        kinds = [(0, "processes"), (1, "processes"), (2, "processes")]
    return {
        "dataset": dataset,
        "options": options,
        "kinds": [draw(st.sampled_from(kinds)) for _ in range(2)],
        "at": draw(st.integers(0, 40)),
    }


def make(case: dict[str, Any], kind: tuple[int, str], **more: Any) -> stoker.DataLoader[Any]:
    return stoker.DataLoader(case["dataset"], num_workers=kind[0], workers=kind[1], **case["options"], **more)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_interrupted_anywhere_and_resumed_into_any_workers(case: dict[str, Any]) -> None:
    whole = run(make(case, (0, "processes")))
    at = case["at"] % (len(whole) + 1)
    first = make(case, case["kinds"][0])
    seen = run(first, at) if at else []
    state = json.loads(json.dumps(first.state_dict()))
    torch.manual_seed(random.randrange(1000))  # whatever the process draws elsewhere makes no difference
    second = make(case, case["kinds"][1])
    second.load_state_dict(state)
    assert second.state_dict() == state
    run(second, epochs=EPOCHS - state["epoch"], into=seen)
    assert_same(seen, whole)
    first.close()
    second.close()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_every_epoch_has_every_sample_once_in_an_order_of_its_own(options: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(50), batch_size=4, shuffle=True, seed=1, **options)
    epochs = [[label for batch in loader for label in batch[1].tolist()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    loader.close()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop", [False, True])
def test_distributed_sampler_index_for_index(world: int, drop: bool) -> None:
    for epoch in (0, 4):
        for rank in range(world):
            sampler = DistributedSampler(Numbers(23), world, rank, seed=5, drop_last=drop)
            sampler.set_epoch(epoch)
            loader = stoker.DataLoader(Numbers(23), batch_size=4, sampler=sampler, seed=9)
            assert [label for batch in loader for label in batch[1].tolist()] == list(sampler)


def test_another_world_size_sees_the_samples_that_remain() -> None:
    def loader(rank: int, world: int, batch: int) -> stoker.DataLoader[Any]:
        return stoker.DataLoader(
            Augmented(48), batch_size=batch, sampler=DistributedSampler(Numbers(48), world, rank, seed=2), seed=4
        )

    def together(world: int, batch: int, state: Any, steps: int | None = None) -> tuple[list[Any], Any]:
        loaders = [loader(rank, world, batch) for rank in range(world)]
        for one in loaders if state else []:
            one.load_state_dict(state)
        batches: list[Any] = []
        iterators = [iter(one) for one in loaders]
        for parts in zip(*iterators, strict=True):
            # The batch of all processes, sample by sample in the global order.
            rows = [[leaf[number] for leaf in part] for number in range(len(parts[0][0])) for part in parts]
            batches.append(rows)
            if steps is not None and len(batches) == steps:
                break
        return batches, loaders[0].state_dict()

    whole, _ = together(4, 2, None)
    begun, state = together(4, 2, None, steps=2)
    assert state["samples"] == 16
    rest, _ = together(2, 4, state)
    assert_same(begun + rest, whole)


def test_repeated_samples_differ() -> None:
    sampler = RandomSampler(Numbers(2), replacement=True, num_samples=40)
    loader = stoker.DataLoader(Augmented(2), sampler=sampler, seed=1, num_workers=2)
    assert len({tuple(batch[0][0].tolist()) for batch in loader}) == 40


def test_augmentations_differ_from_epoch_to_epoch() -> None:
    loader = stoker.DataLoader(Augmented(6), batch_size=6, seed=1)
    first, second = next(iter(loader)), next(iter(loader))
    assert not torch.equal(first[0], second[0])
    loader.set_epoch(0)
    assert_same(next(iter(loader)), first)


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_the_training_process_are_left_alone(workers: int) -> None:
    def numbers() -> tuple[Any, ...]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = numbers()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    run(stoker.DataLoader(Augmented(8), batch_size=2, shuffle=True, seed=3, num_workers=workers, collate_fn=mix_up))
    assert numbers() == expected


def test_prefetched_but_unseen_batches_are_not_counted() -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=2, num_workers=2, prefetch_factor=4, seed=0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    assert (state["samples"], state["_num_yielded"], state["epoch"]) == (6, 3, 0)
    del iterator


def test_state_is_cheap_and_does_not_grow() -> None:
    loader = stoker.DataLoader(Numbers(10**7), batch_size=64, seed=0)
    iterator = iter(loader)
    next(iterator)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        state = loader.state_dict()
        times.append(time.perf_counter() - began)
    assert min(times) < 50e-6
    assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize("seed", [1, None])
def test_an_epoch_may_be_a_number_of_numpys(seed: int | None) -> None:
    """`torch.load()` refuses a state that has one."""
    loader = stoker.DataLoader(Numbers(8), batch_size=2, seed=seed)
    for epoch in np.arange(3, 5):
        loader.set_epoch(epoch)
        next(iter(loader))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 4


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dataset": Numbers(9)}, "samples is 8 in the state and 9"),
        ({"seed": 2}, "seed is 1 in the state and 2"),
        ({"shuffle": False}, "shuffle is True in the state and False"),
        ({"batch_size": 3}, "batch is 2 in the state and 3"),
        ({"seed": None}, "kind is 'drawn' in the state and 'torch'"),
    ],
)
def test_a_state_of_another_loader_is_refused_with_the_difference_named(other: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {"dataset": Numbers(8), "batch_size": 2, "shuffle": True, "seed": 1}
    state = stoker.DataLoader(**options).state_dict()
    with pytest.raises(ConfigError, match=words):
        stoker.DataLoader(**options | other).load_state_dict(state)


def test_states_that_are_none_are_refused() -> None:
    loader = stoker.DataLoader(Numbers(8), seed=1)
    with pytest.raises(ConfigError, match="not the state of a"):
        loader.load_state_dict({"something": 1})
    with pytest.raises(ConfigError, match="version 7"):
        loader.load_state_dict(loader.state_dict() | {"version": 7})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("at", [0, 1, 4, 9, 10])
def test_without_a_seed_the_order_resumes(workers: int, own_generator: bool, at: int) -> None:
    def loader() -> stoker.DataLoader[Any]:
        generator = torch.Generator().manual_seed(8) if own_generator else None
        return stoker.DataLoader(Numbers(20), batch_size=2, shuffle=True, num_workers=workers, generator=generator)

    torch.manual_seed(5)
    first = loader()
    iterator = iter(first)
    seen = [next(iterator)[1].tolist() for _ in range(at)]
    state = json.loads(json.dumps(first.state_dict()))
    rest = [batch[1].tolist() for batch in iterator]
    torch.manual_seed(99)
    second = loader()
    second.load_state_dict(state)
    before = torch.get_rng_state()
    resumed = [batch[1].tolist() for batch in second]
    if at == 0:  # nothing was seen: a new epoch, as it comes
        assert len(resumed) == 10
        return
    assert resumed == rest
    assert len(seen) + len(resumed) == 10
    assert own_generator or torch.equal(torch.get_rng_state(), before)


def test_streams_resume_by_passing_by() -> None:
    first = stoker.DataLoader(Stream("int", 12), batch_size=2, num_workers=2)
    iterator = iter(first)
    [next(iterator) for _ in range(2)]
    state = first.state_dict()
    rest = [batch.tolist() for batch in iterator]
    second = stoker.DataLoader(Stream("int", 12), batch_size=2, num_workers=2)
    second.load_state_dict(state)
    assert [batch.tolist() for batch in second] == rest


@pytest.mark.parametrize("kind", [(2, "processes"), (2, "threads"), (0, "processes")])
def test_errors_take_the_place_of_their_batches_and_are_counted(kind: tuple[int, str]) -> None:
    dataset = Samples("int", 12, {0: "value", 5: "key", 11: "odd"})
    loader = stoker.DataLoader(dataset, batch_size=2, num_workers=kind[0], workers=kind[1], seed=1)
    iterator, seen = iter(loader), []
    for _ in range(6):
        try:
            seen.append(next(iterator).tolist())
        except Exception as error:
            seen.append(type(error).__name__)
    assert seen == ["ValueError", [2, 3], "KeyError", [6, 7], [8, 9], "OddError"]
    assert loader.state_dict()["samples"] == 12
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["epoch"] == 1


def test_bulk_datasets_are_seeded_by_batch() -> None:
    options: dict[str, Any] = {"batch_size": 4, "seed": 2}
    alone = run(stoker.DataLoader(BulkSamples("random", 16), **options), epochs=1)
    assert_same(run(stoker.DataLoader(BulkSamples("random", 16), num_workers=2, **options), epochs=1), alone)


class TestThreads:
    def test_they_share_the_dataset_and_need_no_pickling(self) -> None:
        dataset = Numbers(40)
        dataset.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
        seen = run(stoker.DataLoader(dataset, batch_size=4, num_workers=2, workers="threads"), epochs=1)
        assert [batch[1].tolist() for batch in seen] == [list(range(n, n + 4)) for n in range(0, 40, 4)]

    def test_one_warning_about_datasets_that_draw_from_global_generators(self) -> None:
        loader = stoker.DataLoader(Augmented(8), num_workers=2, workers="threads", seed=1)
        with pytest.warns(UserWarning, match="draws from the default generators") as caught:
            run(loader)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(stoker.DataLoader(WithRng(8), num_workers=2, workers="threads", seed=1))
            run(stoker.DataLoader(Numbers(8), num_workers=2, workers="threads"))

    def test_exceptions_timeouts_and_stats_are_those_of_processes(self) -> None:
        may_go_on = threading.Event()

        class Slow(Numbers):
            def __getitem__(self, index: int) -> int:
                if index == 2:
                    may_go_on.wait()
                if index == 1:
                    raise KeyError("one")
                return index

        loader = stoker.DataLoader(Slow(4), num_workers=1, workers="threads", timeout=1)
        iterator: Any = iter(loader)
        iterator._timeout = 100
        assert int(next(iterator)) == 0
        with pytest.raises(KeyError, match="worker thread 0"):
            next(iterator)
        iterator._timeout = 1
        with pytest.raises(RuntimeError, match="timed out"):
            next(iterator)
        may_go_on.set()
        loader.close()
        assert loader.stats().workers == 1

    def test_datapipes_are_refused(self) -> None:
        pipe = torch.utils.data.datapipes.iter.IterableWrapper(range(4))
        with pytest.raises(ConfigError, match="datapipe"):
            iter(stoker.DataLoader(pipe, num_workers=1, workers="threads"))

    def test_persistent_threads(self) -> None:
        loader = stoker.DataLoader(Numbers(8), num_workers=2, workers="threads", persistent_workers=True)
        assert len(run(loader)) == 24
        loader.close()

    @pytest.mark.parametrize("seed", [None, 1])
    def test_each_thread_has_its_worker_info_and_no_other_thread_has_one(self, seed: int | None) -> None:
        class Told(Numbers):
            def __getitem__(self, index: int) -> list[int]:
                info = get_worker_info()
                number = int(threading.current_thread().name.removeprefix("stoker-worker-"))
                return [info.id - number, info.num_workers, info.seed, int(info.dataset is self)]

        inits: list[Any] = []
        loader = stoker.DataLoader(
            Told(12),
            2,
            num_workers=2,
            workers="threads",
            seed=seed,
            worker_init_fn=lambda _: inits.append(get_worker_info()),
        )
        for batch in loader:
            assert get_worker_info() is None
            apart, workers, seeds, own = (column.tolist() for column in batch)
            assert (set(apart), set(workers), set(own)) == ({0}, {2}, {1})
            assert set(seeds) <= {info.seed for info in inits}
        assert sorted(info.id for info in inits) == [0, 1]
        assert len({info.seed for info in inits}) == 2
        loader.close()
        assert get_worker_info.__code__.co_names == ("_worker_info",)  # torch's own again

    def test_worker_info_in_processes_that_are_forked_while_threads_work(self) -> None:
        class Told(Numbers):
            def __getitem__(self, index: int) -> int:
                return get_worker_info().num_workers

        threads = stoker.DataLoader(Told(40), num_workers=2, workers="threads")
        iterator = iter(threads)
        assert int(next(iterator)) == 2
        assert [int(workers) for workers in stoker.DataLoader(Told(4), num_workers=1)] == [1] * 4
        assert [int(workers) for workers in iterator] == [2] * 39
        threads.close()

    def test_a_batch_that_the_user_collates_does_not_go_to_shared_memory(self) -> None:
        loader = stoker.DataLoader(Numbers(8), 4, num_workers=1, workers="threads", collate_fn=lambda s: default_collate(s))
        assert not any(batch[0].is_shared() for batch in loader)
        loader.close()


@pytest.mark.parametrize("options", [{"workers": "fibres"}, {"seed": "x"}, {"seed": True}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        stoker.DataLoader(Numbers(2), **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 5])
def test_between_epochs_a_samplers_own_generator_resumes(workers: int, seed: int | None) -> None:
    def loader() -> Any:
        sampler = RandomSampler(range(20), generator=torch.Generator().manual_seed(8))
        return stoker.DataLoader(Numbers(20), 2, sampler=sampler, num_workers=workers, seed=seed)

    first = loader()
    list(first)
    state = json.loads(json.dumps(first.state_dict()))
    following = [batch[1].tolist() for batch in first]
    second = loader()
    second.load_state_dict(state)
    assert [batch[1].tolist() for batch in second] == following


def test_padding_of_a_resumed_epoch_is_that_of_the_whole() -> None:
    def loader() -> Any:
        sampler = DistributedSampler(Numbers(15), 2, 1, seed=3)
        return stoker.DataLoader(Numbers(15), 2, sampler=sampler, seed=1)

    whole = [batch[1].tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    next(iterator), next(iterator)
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [batch[1].tolist() for batch in second] == whole[2:]
