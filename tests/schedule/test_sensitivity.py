"""A job's matrix: which counts are measured, and what is made of them."""

import json
from pathlib import Path

import pytest

from stoker.decide.model import Share, predict, scaled
from stoker.profile import Profile
from stoker.schedule.job import Server
from stoker.schedule.profiles import read_profiles
from stoker.schedule.sensitivity import MeasuredRate, document, matrix_of, measured_counts, process_memory_gb

MINIMAL = {
    "version": 1,
    "stoker": "0.1.0",
    "batch_size": 10,
    "workers": 8,
    "dataset": {"samples": 1000, "bytes": 2_000_000_000, "bytes_known": True},
    "rates": {"gpu": 1000.0, "prep": 400.0, "storage": 300.0, "cache": 4000.0, "prep_by_workers": {"1": 100.0, "8": 400.0}},
    "speed": {"synthetic": 1000.0, "cached": 400.0, "cold": 200.0},
    "stalls": {"prep": 0.3, "fetch": 0.3},
    "limit": "fetch",
    "host": {"cores": 4.0, "memory_bytes": 8_000_000_000, "device": "cpu"},
}


def counted(rate_of: "dict[int, float]", most: int, limit: int = 8) -> list[int]:
    asked: list[int] = []

    def measure(count: int) -> float:
        asked.append(count)
        return rate_of[count]

    assert measured_counts(most, measure, limit) == {count: rate_of[count] for count in asked}
    return asked


def test_a_job_that_no_core_helps_is_measured_twice() -> None:
    assert counted(dict.fromkeys(range(1, 25), 5.0), 24) == [24, 1]


def test_the_bend_is_found_by_halves_and_never_more_than_eight_are_measured() -> None:
    asked = counted({count: float(min(count, 6)) for count in range(1, 25)}, 24)
    assert len(asked) <= 8
    assert {5, 6, 7} & set(asked)
    assert len(counted({count: float(count**2) for count in range(1, 25)}, 24)) == 8


def test_a_count_that_seems_slower_than_a_smaller_one_is_measured_once_more() -> None:
    told = {8: [2.0, 8.0], 1: [4.0], 4: [3.0, 3.5], 6: [8.0], 5: [7.5]}
    asked: list[int] = []

    def measure(count: int) -> float:
        asked.append(count)
        return told[count].pop(0)

    assert measured_counts(8, measure) == {8: 8.0, 1: 4.0, 4: 3.5, 6: 8.0, 5: 7.5}
    assert asked == [8, 1, 8, 4, 4, 6, 5]
    assert len(asked) <= 8


def test_measuring_again_counts_as_one_of_the_measurements() -> None:
    asked: list[int] = []
    measured_counts(64, lambda count: asked.append(count) or 1.0 / count, limit=5)  # type: ignore[func-returns-value]
    assert asked == [64, 1, 64]
    asked.clear()
    measured_counts(64, lambda count: asked.append(count) or 1.0 / count, limit=2)  # type: ignore[func-returns-value]
    assert asked == [64, 1]


def test_one_core_is_measured_once() -> None:
    assert counted({1: 2.0}, 1) == [1]


def test_processes_have_more_memory_than_they_were_seen_with() -> None:
    assert process_memory_gb([100_000_000, 400_000_000, 300_000_000]) == pytest.approx(0.5)


def profile() -> Profile:
    return Profile.of_document(MINIMAL)


def test_the_model_is_corrected_by_what_was_measured(tmp_path: Path) -> None:
    """Measured points are as measured, those between by the model's shape, and more is never slower."""
    known = profile()
    modelled = {count: predict(known.rates, Share(cores=count)).rate / 10 for count in (1, 2, 4)}
    matrix = matrix_of(known, {count: MeasuredRate(0.8 * modelled[count], 0.0) for count in (1, 4)}, process_gb=0.5)
    assert matrix.rate(1, 0.5) == pytest.approx(0.8 * modelled[1], rel=1e-3)
    assert matrix.rate(4, 0.5) == pytest.approx(0.8 * modelled[4], rel=1e-3)
    assert matrix.rate(2, 0.5) == pytest.approx(0.8 * modelled[2], rel=0.1)
    assert matrix.memory_gb == pytest.approx((0.5, 1.0, 1.5, 2.0, 2.5))
    assert matrix.rate(4, 2.5) >= matrix.rate(4, 0.5)
    path = tmp_path / "train.json"
    path.write_text(json.dumps(document("train", matrix, {"measured": {}})))
    read = read_profiles(path, [Server("a", 1, 3.0, 1.0)])["train"].matrix
    assert read.wanted == matrix.wanted
    # 10 samples of 2 MB an iteration; 1.5 GB beside the processes' half hold half of the data
    assert read.storage_mb_s(1.5, 3.0) == pytest.approx(3.0 * 20 * 0.5)
    assert read.storage_mb_s(2.5, 3.0) == 0.0
    for count in (1, 2, 3, 4):
        assert read.rate(count, 1.5) == pytest.approx(matrix.rate(count, 1.5))


def test_without_storage_only_the_processes_need_memory() -> None:
    document = MINIMAL | {"rates": {**MINIMAL["rates"], "storage": 0.0}}  # type: ignore[dict-item]
    matrix = matrix_of(Profile.of_document(document), {1: MeasuredRate(5.0), 4: MeasuredRate(12.0)}, process_gb=0.5)
    assert matrix.memory_gb == (0.5,)


def test_what_was_measured_with_the_data_in_memory_says_nothing_against_the_store() -> None:
    """A job that prepares half as fast as thought, and reads as fast: with nothing cached the store is still the limit."""
    known = profile()
    half = scaled(known.rates, "prep", 0.5)
    seen = {count: MeasuredRate(predict(half, Share(cores=count, cached=1.0)).rate / 10, 1.0) for count in (1, 2, 4)}
    matrix = matrix_of(known, seen, process_gb=0.5)
    for count in (1, 2, 4):
        for part, memory in ((0.0, 0.5), (0.5, 1.5), (1.0, 2.5)):
            expected = predict(half, Share(cores=count, cached=part)).rate / 10
            assert matrix.rate(count, memory) == pytest.approx(expected, rel=2e-3)


def test_between_measured_counts_a_job_is_never_faster_than_with_more() -> None:
    """A loop that is slower than the model thinks, where cores are enough, is so with some cores less."""
    known = profile()
    most = predict(known.rates, Share(cores=16, cached=1.0)).rate / 10
    fewer = predict(scaled(known.rates, "prep", 1.5), Share(cores=2, cached=1.0)).rate / 10
    matrix = matrix_of(known, {2: MeasuredRate(fewer), 16: MeasuredRate(0.8 * most)}, process_gb=0.5)
    assert max(max(row) for row in matrix.rates) == pytest.approx(0.8 * most, rel=2e-3)
