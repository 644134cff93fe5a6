"""The cost model: against published formulas, against a simulated loader, and as a function that one can trust."""

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.pipeline import Pipeline
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.decide.model import Share, fetch_rate, hit_ratio, predict, seen_together
from stoker.errors import ConfigError
from stoker.profile import Confidence, Rates

MANY = 1e9


def rates(**values: Any) -> Rates:
    return Rates(**{"gpu": 1000.0, "prep": 1500.0, "storage": 200.0, "cache": 5e4, "workers": 2, "cores": 2.0} | values)


class TestPublished:
    """DS-Analyzer's formulas, in the cases that they are for."""

    def test_fetch_rate(self) -> None:
        assert fetch_rate(0.35, 530, 17_100) == pytest.approx(802, abs=1)

    @pytest.mark.parametrize("workers", [1, 2, 24])
    def test_the_same_from_the_model_when_nothing_else_costs(self, workers: int) -> None:
        told = Rates(gpu=MANY, prep=MANY, storage=530, cache=17_100, workers=workers)
        assert predict(told, Share(cached=0.35)).rate == pytest.approx(802, abs=1)

    def test_reading_inside_prep_is_the_same_for_one_worker(self) -> None:
        told = Rates(gpu=MANY, prep=17_100, storage=530, cache=17_100, workers=1)
        assert predict(told, Share(cached=0.35)).rate == pytest.approx(802, abs=1)

    def test_lru(self) -> None:
        assert hit_ratio(0.35, "lru") == pytest.approx(0.070, abs=0.001)
        assert hit_ratio(0.65, "lru") == pytest.approx(0.283, abs=0.001)
        assert [hit_ratio(x, "lru") for x in (0.0, 1.0)] == [0.0, 1.0]
        assert hit_ratio(0.35) == hit_ratio(0.35, "reuse-distance") == 0.35
        assert predict(rates(), Share(cached=0.5, policy="lru")).rate < predict(rates(), Share(cached=0.5)).rate

    def test_far_from_balance_it_is_the_smallest_rate(self) -> None:
        for gpu, prep, storage, limit in [(100, 9e4, 9e4, "gpu"), (9e4, 100, 9e4, "prep"), (9e4, 9e4, 100, "fetch")]:
            told = Rates(gpu=gpu, prep=prep, storage=storage, cache=1e6, workers=8, cores=8)
            seen = predict(told, Share())
            assert (seen.rate, seen.limit) == (pytest.approx(100, rel=0.01), limit)


class TestSerial:
    """Inside one worker reading and preparing never overlap."""

    def test_one_worker(self) -> None:
        told = rates(workers=1, prep=1000.0, storage=1000.0, cache=MANY, gpu=MANY)
        assert predict(told, Share()).rate == pytest.approx(500)
        assert predict(told, Share(cached=0.5)).rate == pytest.approx(1 / (1 / 1000 + 0.5 / 1000))

    def test_a_store_that_waits_adds_its_time_for_any_number_of_workers(self) -> None:
        linear = {count: 250.0 * count for count in (1, 2, 4)}
        told = rates(
            workers=4,
            cores=4,
            gpu=MANY,
            prep=1000,
            prep_by_workers=linear,
            storage=1000,
            storage_by_readers=linear,
            cache=MANY,
        )
        assert predict(told, Share()).rate == pytest.approx(500, rel=0.01)
        assert predict(told, Share(workers=8, cores=8)).rate == pytest.approx(1000, rel=0.01)
        assert predict(told, Share(workers=8)).rate == pytest.approx(900, rel=0.1)  # on 4 cores, others read meanwhile

    def test_without_workers_everything_adds_up(self) -> None:
        told = rates(workers=0, gpu=1000, prep=1000, storage=1000, cache=MANY)
        seen = predict(told, Share())
        assert seen.rate == pytest.approx(1000 / 3)
        assert (seen.prep_stall, seen.fetch_stall) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
        assert predict(replace(told, gpu=50), Share()).limit == "gpu"

    def test_a_cache_that_is_faster_than_the_store_is_not_slower_where_cores_are_short(self) -> None:
        told = rates(
            gpu=10, prep=1002, prep_by_workers={1: 501, 2: 1002}, storage=10, storage_by_readers={1: 10, 2: 10}, cache=1000,
            loop_cores=2, spread=0.0,
        )  # fmt: skip
        assert predict(told, Share(workers=1)).rate <= predict(told, Share(workers=1, cached=1)).rate * (1 + 1e-6)

    def test_more_cores_do_not_hurt_where_more_workers_do_not_help(self) -> None:
        told = rates(
            gpu=114, prep=101, prep_by_workers={1: 101, 2: 101}, storage=501, storage_by_readers={1: 501, 2: 501},
            cache=1000, spread=0.0,
        )  # fmt: skip
        few, many = (predict(told, Share(workers=4, cores=cores)).rate for cores in (2, 4))
        assert many >= few * (1 - 1e-6)

    def test_a_loop_that_computes_on_the_cores_leaves_less_of_them(self) -> None:
        told = rates(prep=1000, prep_by_workers={1: 500, 2: 1000}, gpu=1000, loop_cores=2, storage=0, cache=0)
        assert predict(told, Share()).rate == pytest.approx(500, rel=0.01)
        assert predict(replace(told, loop_cores=0), Share()).rate == pytest.approx(1000)

    def test_prep_that_waits_needs_no_cores(self) -> None:
        told = rates(cores=2, workers=4, prep=400, prep_by_workers={1: 100, 2: 200, 4: 400}, storage=0, prep_busy=0.0)
        assert predict(told, Share(workers=8)).rate == pytest.approx(800)
        busy = replace(told, prep=200, prep_by_workers={1: 100, 2: 200, 4: 200}, prep_busy=1.0)
        assert predict(busy, Share(workers=8)).rate == pytest.approx(200)
        assert predict(busy, Share(workers=8, cores=8)).rate == pytest.approx(800)


class TestQuota:
    """A store that saves up while a worker prepares, and gives no more than its quota for long."""

    told = rates(
        workers=2, gpu=MANY, prep=640, prep_by_workers={1: 320, 2: 640}, storage=380, storage_by_readers={1: 380, 2: 380},
        storage_rested=4000, cache=MANY,
    )  # fmt: skip

    def test_below_the_quota_a_read_takes_what_it_takes_after_a_rest(self) -> None:
        assert predict(self.told, Share(workers=1)).rate == pytest.approx(1 / (1 / 320 + 1 / 4000))

    def test_above_it_the_quota_is_the_limit(self) -> None:
        assert predict(self.told, Share()).rate == pytest.approx(380)
        assert predict(self.told, Share(cached=0.25)).rate == pytest.approx(380 / 0.75)
        assert predict(self.told, Share(cached=0.75)).rate == pytest.approx(2 / (2 / 640 + 0.25 / 4000), rel=0.01)

    @pytest.mark.parametrize("rested", [0.0, 300.0, 380.0, 450.0])
    def test_a_store_that_is_not_faster_after_a_rest_has_none(self, rested: float) -> None:
        without = replace(self.told, storage_rested=0.0)
        assert predict(replace(self.told, storage_rested=rested), Share()) == predict(without, Share())

    def test_against_a_simulated_one(self) -> None:
        for workers, cached in [(1, 0.0), (1, 0.5), (2, 0.0), (2, 0.25), (2, 0.5), (2, 0.75), (4, 0.25)]:
            loader = Pipeline(workers=workers, prep_s=3e-3, transfer_s=2e-4, quota_s=2.6e-3, hit_s=1e-5, cached=cached)
            seen = predict(loader.measured(), Share(cached=cached)).rate
            assert seen == pytest.approx(loader.rate(), rel=0.05), (workers, cached)


class TestSeenTogether:
    """A loop that computes on the workers' cores costs more than its processor time; that much was seen."""

    told = rates(prep=1000, prep_by_workers={1: 500, 2: 1000}, gpu=1700, loop_cores=1, storage=60, storage_rested=0)

    def test_what_was_seen_is_predicted(self) -> None:
        assert predict(self.told, Share(cached=1)).rate == pytest.approx(773, rel=0.01)
        known = seen_together(self.told, Share(), 680)
        assert predict(known, Share(cached=1)).rate == pytest.approx(680, rel=0.001)
        assert 1 < known.loop_cores < 2
        assert replace(known, loop_cores=1) == self.told

    def test_no_more_than_all_cores(self) -> None:
        assert seen_together(self.told, Share(), 100).loop_cores == 2

    def test_where_the_cores_are_not_short_it_is_something_else(self) -> None:
        for other in (
            replace(self.told, prep_busy=0.1),
            replace(self.told, cores=8.0),
            replace(self.told, gpu=500.0),  # the loop is the limit
        ):
            assert seen_together(other, Share(), 400) == other
        assert seen_together(self.told, Share(), 900) == self.told  # faster than expected
        assert seen_together(self.told, Share(), 0.0) == self.told  # not measured


class TestStalls:
    def test_they_and_compute_are_the_whole(self) -> None:
        seen = predict(rates(prep=500.0), Share())
        assert 1 - seen.stall == pytest.approx(seen.rate / 1000)
        assert seen.prep_stall == pytest.approx(seen.rate * (1 / 500 - 1 / 1000))

    def test_a_loop_that_is_slow_itself_has_none(self) -> None:
        seen = predict(rates(gpu=50), Share())
        assert (seen.stall, seen.limit) == (pytest.approx(0), "gpu")

    def test_handing_over_is_waiting_for_data_that_no_loader_removes(self) -> None:
        seen = predict(rates(gpu=50, handover=1000), Share())
        assert (seen.limit, seen.fetch_stall) == ("gpu", 0)
        assert seen.prep_stall == pytest.approx(50 / 1050)


class TestBand:
    def test_the_limit_decides_which_confidence_counts(self) -> None:
        sure = Confidence(gpu=0.1, prep=0.0, storage=0.0, cache=0.0)
        gpu = predict(rates(gpu=50), Share(), sure)
        assert (gpu.low, gpu.high) == (pytest.approx(45), pytest.approx(55))
        fetch = predict(rates(storage_by_readers={1: 200, 2: 200}), Share(), sure)
        assert fetch.low == fetch.high == fetch.rate

    def test_what_was_not_measured_widens_it(self) -> None:
        told = rates(prep_by_workers={1: 750, 2: 1500}, storage_by_readers={1: 100, 2: 200})
        assert not predict(told, Share()).extrapolated
        beyond = predict(told, Share(workers=8, cores=8))
        assert beyond.extrapolated
        assert beyond.low < 250 < beyond.rate
        guessed = predict(rates(prep=300), Share())  # is it a store that waits, or one that is used up?
        assert guessed.extrapolated
        assert guessed.low == pytest.approx(1 / (1 / 300 + 1 / 200), rel=0.02)

    def test_without_confidence_and_guesses_there_is_none(self) -> None:
        seen = predict(rates(workers=1), Share())
        assert seen.low == seen.rate == seen.high


curve = st.tuples(st.floats(10, 1e4), st.floats(1.0, 2.0)).map(lambda c: {1: c[0], 2: c[0] * c[1]})
told = st.builds(
    lambda gpu, prep, store, cache, spread, loop, workers: Rates(
        gpu=gpu, prep=prep[2], prep_by_workers=prep, storage=store[2], storage_by_readers=store, cache=cache, workers=2,
        cores=2.0, spread=spread, loop_cores=loop, batch=workers,
    ),
    st.floats(10, 1e5), curve, curve, st.floats(1e3, 1e6), st.floats(0, 1.5), st.floats(0, 2), st.integers(0, 64),
)  # fmt: skip
shares = st.builds(
    Share, workers=st.integers(0, 40), cores=st.none() | st.floats(0.5, 32), cached=st.floats(0, 1),
    policy=st.sampled_from(["keep-first", "lru"]), storage_factor=st.floats(0.1, 10), gpu_factor=st.floats(0.1, 10),
)  # fmt: skip


@settings(deadline=None)
@given(told, shares, st.floats(0, 1), st.floats(1, 1e5))
def test_predictions_are_sane(rates: Rates, share: Share, part: float, network: float) -> None:
    share = replace(share, peers=part * (1 - share.cached), network=network)
    seen = predict(rates, share, Confidence(0.05, 0.05, 0.05, 0.05))
    assert 0 < seen.rate <= seen.gpu * (1 + 1e-9)
    assert seen.low <= seen.rate <= seen.high
    assert 0 <= seen.prep_stall <= 1
    assert 0 <= seen.fetch_stall <= 1
    assert 1 - seen.stall == pytest.approx(seen.rate / seen.gpu, abs=1e-6)
    assert seen.limit in ("gpu", "prep", "fetch")


@settings(max_examples=50, deadline=None)
@given(told, shares, st.floats(1.01, 3))
def test_more_of_anything_does_not_hurt(rates: Rates, share: Share, factor: float) -> None:
    base = predict(rates, share).rate
    more = [
        replace(share, storage_factor=share.storage_factor * factor),
        replace(share, gpu_factor=share.gpu_factor * factor),
        replace(share, cores=(share.cores or 2) * factor),
    ]
    for other in more:
        assert predict(rates, other).rate >= base * 0.95  # uneven batches are a rule of thumb


@settings(max_examples=50, deadline=None)
@given(told, shares, st.floats(0, 1))
def test_all_cached_is_the_best_that_a_cache_can_do(rates: Rates, share: Share, cached: float) -> None:
    best = predict(rates, replace(share, cached=1.0)).rate
    if rates.cache >= 2 * rates.storage_by_readers[1] * share.storage_factor:
        assert predict(rates, replace(share, cached=cached)).rate <= best * (1 + 1e-6)


def test_wrong_questions() -> None:
    for wrong in ({"cached": 1.5}, {"policy": "fifo"}, {"workers": -1}, {"cores": 0.0}, {"gpu_factor": math.inf}):
        with pytest.raises(ConfigError):
            Share(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the rate gpu was not measured"):
        predict(rates(gpu=0.0), Share())
    assert stoker.predict(rates(storage=0.0), stoker.Share()).fetch_stall == 0


def simulated(seed: int) -> tuple[Pipeline, float, float, float]:
    """A loader near balance, its true rate, the model's, and what min() of the rates says."""
    rng = random.Random(seed)
    workers = rng.choice([1, 2, 2, 3, 4, 8])
    prep_s = rng.uniform(0.5e-3, 2e-3)
    kind = rng.choice(["bandwidth", "latency", "both"])
    pipeline = Pipeline(
        workers=workers,
        cores=rng.choice([64, workers, max(1, workers // 2)]),
        batch=rng.choice([16, 64]),
        prep_s=prep_s,
        transfer_s=0.0 if kind == "latency" else prep_s / workers * math.exp(rng.uniform(-1, 1)),
        latency_s=0.0 if kind == "bandwidth" else prep_s * math.exp(rng.uniform(-1, 1)),
        hit_s=0.01 * prep_s,
        cached=rng.choice([0.0, 0.25, 0.5, 0.75, 1.0]),
        spread=rng.choice([0.0, 0.3, 0.6]),
        compute_s=rng.choice([0.0, 2 * prep_s / workers]),
    )
    batches = 4000 // pipeline.batch
    measured = pipeline.measured(batches)
    misses = 1 - pipeline.cached
    minimum = min(measured.gpu, measured.prep, measured.storage / misses if misses else math.inf)
    return pipeline, pipeline.rate(batches, seed), predict(measured, Share(cached=pipeline.cached)).rate, minimum


def test_against_a_simulated_loader() -> None:
    cases = [simulated(seed) for seed in range(60)]
    errors = [abs(model / truth - 1) for _, truth, model, _ in cases]
    assert statistics.median(errors) <= 0.02
    assert max(errors) <= 0.10, max(zip(errors, cases, strict=True), key=lambda pair: pair[0])
    plain = [abs(minimum / truth - 1) for _, truth, _, minimum in cases]
    assert statistics.median(plain) > 2 * statistics.median(errors)
    assert max(plain) > 0.5  # what it is for
