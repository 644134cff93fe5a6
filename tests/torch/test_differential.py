"""Whatever is asked for, our loader gives what torch's gives: batches, types, order, randomness and errors."""

import gc
import importlib.util
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import datasets

import stoker

assert importlib.util.find_spec("tests.datasets"), "run pytest from the project's root"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> None:
    """What other tests have imported is not looked at in each of the many collections here."""
    gc.collect()
    gc.freeze()


def outcomes(kind: type, dataset: Any, options: dict[str, Any], epochs: int) -> list[Any]:
    """Everything a user sees, batch by batch; exceptions take their place among the batches."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    seen: list[Any] = []
    try:
        loader = kind(dataset, **options)
    except Exception as error:
        return [describe(error)]
    for _ in range(epochs):
        try:
            iterator = iter(loader)
        except Exception as error:
            return [describe(error)]
        for _ in range(60):
            try:
                seen.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                seen.append(describe(error))
        seen.append("end of epoch")
        del iterator
        gc.collect()  # torch's iterators, caught in cycles, must not be around when the next workers are forked
    del loader
    gc.collect()
    seen.append(torch.rand(1))  # whatever the loader drew in this process is part of the outcome
    return seen


def describe(error: Exception) -> tuple[Any, ...]:
    lines = str(error).strip().splitlines() or [""]
    if "not resizable" in lines[-1] or "stack expects each tensor to be equal size" in lines[-1]:
        # torch's workers say the one or the other of samples that differ in shape, ours always the clearer one.
        lines[-1] = "shapes differ"
    return type(error), re.sub(r"pid\(?s?\)? \d+", "pid", lines[0]), re.sub(r"0x[0-9a-f]+", "0x", lines[-1])


def assert_same(ours: Any, torchs: Any, where: str = "") -> None:
    assert type(ours) is type(torchs), where
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (torchs.dtype, torchs.shape, torchs.layout), where
        assert ours.requires_grad == torchs.requires_grad, where
        if ours.layout is torch.strided:
            assert ours.stride() == torchs.stride(), where
            assert ours._is_view() == torchs._is_view(), where
        assert torch.equal(ours.to_dense(), torchs.to_dense()), where
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape, ours.flags.writeable) == (torchs.dtype, torchs.shape, torchs.flags.writeable), where
        assert np.array_equal(ours, torchs), where
    elif isinstance(ours, dict):
        assert list(ours) == list(torchs), where
        for key in ours:
            assert_same(ours[key], torchs[key], f"{where}[{key!r}]")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(torchs), where
        for number, (left, right) in enumerate(zip(ours, torchs, strict=True)):
            assert_same(left, right, f"{where}[{number}]")
    else:
        assert ours == torchs, where


def compare(dataset: Any, options: dict[str, Any], epochs: int = 1) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchs = outcomes(torch.utils.data.DataLoader, dataset, options, epochs)
        ours = outcomes(stoker.DataLoader, dataset, options, epochs)
    assert_same(ours, torchs)


@pytest.mark.parametrize("kind", datasets.SAMPLES)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_sample(kind: str, workers: int) -> None:
    compare(datasets.Samples(kind, 11), {"batch_size": 3, "num_workers": workers})
    compare(datasets.Samples(kind, 3), {"batch_size": None, "num_workers": workers})
    compare(datasets.Samples(kind, 4), {"batch_size": 2, "num_workers": workers, "collate_fn": datasets.as_they_are})


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method(method: str) -> None:
    options = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": method, "shuffle": True}
    compare(datasets.Samples("random", 18), options)


@st.composite
def cases(draw: Any) -> tuple[Any, dict[str, Any], int]:
    count = draw(st.integers(0, 14))
    kind = draw(st.sampled_from(sorted(datasets.SAMPLES)))
    options: dict[str, Any] = {"num_workers": draw(st.sampled_from([0, 1, 2, 2]))}
    if options["num_workers"]:
        options["prefetch_factor"] = draw(st.sampled_from([None, 1, 3]))
        options["persistent_workers"] = draw(st.booleans())
    options["collate_fn"] = datasets.COLLATIONS[draw(st.sampled_from(sorted(datasets.COLLATIONS)))]
    form = draw(st.sampled_from(["map", "map", "bulk", "stream"]))
    if form == "stream":
        dataset: Any = datasets.Stream(kind, count)
    else:
        raising = draw(st.dictionaries(st.integers(0, 13), st.sampled_from(sorted(datasets.ERRORS)), max_size=2))
        dataset = (datasets.Samples if form == "map" else datasets.BulkSamples)(kind, count, raising)
    order = draw(st.sampled_from(["batch_size", "shuffle", "sampler", "batch_sampler", "generator", "weighted"]))
    if order == "batch_sampler":
        options["batch_sampler"] = [[i, (i * 3) % max(count, 1)] for i in range(count)]
    else:
        options["batch_size"] = draw(st.sampled_from([None, 1, 2, 5]))
        options["drop_last"] = draw(st.booleans())
        if order == "sampler":
            options["sampler"] = list(range(count))[::-1]
        elif order == "weighted" and count:
            options["sampler"] = torch.utils.data.WeightedRandomSampler([1.0 + i for i in range(count)], count)
        elif order == "shuffle":
            options["shuffle"] = True
        elif order == "generator":
            options["shuffle"] = True
            options["generator"] = torch.Generator()
    return dataset, options, draw(st.integers(1, 2))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_combination(case: tuple[Any, dict[str, Any], int]) -> None:
    dataset, options, epochs = case
    if "generator" in options:
        options["generator"].manual_seed(3)
        state = options["generator"].get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchs = outcomes(torch.utils.data.DataLoader, dataset, options, epochs)
        if "generator" in options:
            options["generator"].set_state(state)
        ours = outcomes(stoker.DataLoader, dataset, options, epochs)
    assert_same(ours, torchs)


WRONG_OPTIONS: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"timeout": 1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": 0},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "thread"},
    {"num_workers": 1, "multiprocessing_context": 3},
    {"no_such_option": 1},
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's, of its half-made iterators
@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=str)
def test_wrong_options_are_refused_in_the_same_words(options: dict[str, Any]) -> None:
    compare(datasets.Samples("int", 4), options)
    gc.collect()
