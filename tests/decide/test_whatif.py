"""Questions to the model, and the advice that comes of them."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.decide.forecast import Forecast, as_measured
from stoker.decide.model import AT_LIMIT, Share, predict
from stoker.decide.whatif import advise, best_workers, fewest_cores, on_cores, smallest_cache, table
from stoker.errors import ConfigError
from stoker.profile import DatasetSize, Host, OnDevice, Profile, Rates, Speed, Stalls


def rates(**values: Any) -> Rates:
    known = {"prep_by_workers": {1: 750.0, 2: 1500.0}, "storage_by_readers": {1: 200.0, 2: 200.0}}
    return Rates(
        **{"gpu": 1000.0, "prep": 1500.0, "storage": 200.0, "cache": 5e4, "workers": 2, "cores": 2.0, **known} | values
    )


def profile(told: Rates, **values: Any) -> Profile:
    known = {
        "stoker": "0", "host": Host(told.cores, 8 * 10**9, "cpu"), "dataset": DatasetSize(2000, 208 * 10**6, True),
        "batch_size": 64, "workers": told.workers, "rates": told, "speed": Speed(0, 0, 0), "stalls": Stalls(0, 0),
        "limit": "gpu",
    }  # fmt: skip
    return Profile(**known | values)


def test_tables() -> None:
    rows = table(Forecast(rates()), Share(), "cached", (0.0, 0.5, 1.0))
    assert [row.share.cached for row in rows] == [0.0, 0.5, 1.0]
    speeds = [row.prediction.rate for row in rows]
    assert speeds == sorted(speeds)
    rows = table(Forecast(rates(storage=0.0, storage_by_readers={}, gpu=1e6)), Share(), "cores", (1, 2, 4))
    assert [row.prediction.rate for row in rows] == [pytest.approx(750), pytest.approx(1500), pytest.approx(3000)]


def test_fewer_cores_are_fewer_workers_on_this_host_and_more_are_a_larger_one() -> None:
    assert on_cores(rates(), Share(), 1) == Share(workers=1, cores=2)
    assert on_cores(rates(), Share(), 8) == Share(workers=8, cores=8)


def test_the_smallest_cache_is_enough_and_less_is_not() -> None:
    answer = smallest_cache(Forecast(rates()), Share())
    assert answer.value is not None
    assert predict(rates(), Share(cached=answer.value)).rate >= AT_LIMIT * 1000
    assert predict(rates(), Share(cached=answer.value - 0.01)).rate < AT_LIMIT * 1000


def test_no_cache_is_needed_or_none_is_enough() -> None:
    assert smallest_cache(Forecast(rates(gpu=100.0)), Share()).value == 0
    slow = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0})
    answer = smallest_cache(Forecast(slow), Share())
    assert answer.value is None
    assert "the workers prepare only 500" in answer.reason
    assert smallest_cache(Forecast(slow), Share(), target=500).value is not None


def test_the_fewest_cores() -> None:
    slow = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, storage=0.0, storage_by_readers={})
    assert fewest_cores(Forecast(slow), Share()).value == 4
    assert fewest_cores(Forecast(rates(gpu=100.0)), Share()).value == 1
    answer = fewest_cores(Forecast(rates()), Share())
    assert answer.value is None
    assert "storage gives only 200" in answer.reason


def test_workers_beyond_the_cores_only_where_they_wait() -> None:
    assert best_workers(Forecast(rates(storage=0.0, storage_by_readers={}, gpu=1e5)), Share()) == 2
    assert best_workers(Forecast(rates(gpu=100.0)), Share()) == 1
    waiting = rates(storage=100.0, storage_by_readers={1: 50.0, 2: 100.0})
    assert best_workers(Forecast(waiting), Share()) == 4


def test_advice_on_a_slow_disk_is_a_cache() -> None:
    (first, *_) = advise(profile(rates()))
    assert first.apply == "--cache 208MB"
    assert first.rate == pytest.approx(1000)
    assert first.gain == pytest.approx(1000 / predict(rates(), Share()).rate - 1)


def test_advice_for_slow_preparing_is_cores_that_must_be_bought() -> None:
    slow = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, storage=1e5, storage_by_readers={1: 1e5})
    (only,) = advise(profile(slow))
    assert (only.change, only.apply) == ("4 cores with a worker each", "")
    assert only.rate == pytest.approx(1000, rel=0.02)


def test_advice_for_a_loader_without_workers() -> None:
    found = advise(profile(rates(workers=0, cores=4.0, storage=200.0)))
    assert found[0].apply.startswith("num_workers=")
    assert 2 <= len(found) <= 3
    assert [one.rate for one in found if one.apply] == sorted((one.rate for one in found if one.apply), reverse=True)


def test_workers_beyond_those_that_were_measured_are_advised_as_such() -> None:
    """Two workers that mostly wait keep no core busy: four would fit, and nobody has tried them."""
    waiting = rates(prep=200.0, prep_by_workers={1: 100.0, 2: 200.0}, prep_busy=0.1, storage=0.0, storage_by_readers={})
    (first, *_) = advise(profile(waiting))
    assert (first.change, first.apply) == ("4 workers, more than was measured", "num_workers=4")


def test_threads_are_advised_where_they_were_better() -> None:
    told = rates(prep=300.0, prep_by_workers={2: 300.0}, prep_by_threads={2: 500.0}, storage=0.0, storage_by_readers={})
    assert "--workers threads" in [one.apply for one in advise(profile(told))]


def test_a_loop_that_is_fed_needs_no_advice() -> None:
    assert advise(profile(rates(gpu=100.0))) == ()


def test_as_measured() -> None:
    assert as_measured(replace(profile(rates()), cached=0.5, workers_kind="threads")) == Share(2, cached=0.5, threads=True)


def on_a_gpu(**values: Any) -> Profile:
    """A loop that waits for preparing, with what was measured of a device that does a part of it."""
    told = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, storage=0.0, storage_by_readers={}, gpu=2000.0)
    parts = (
        OnDevice("tail", prep=640.0, loop=1980.0, cached=610.0),
        OnDevice("device", prep=4000.0, loop=1800.0, cached=1750.0),
    )
    return profile(told, **{"speed": Speed(2000.0, 480.0, 480.0), "on_device": parts, **values})


def test_what_was_seen_with_the_device_is_what_is_predicted_and_advised() -> None:
    known = on_a_gpu()
    forecast, now = Forecast.of(known), as_measured(known)
    assert forecast.rate(now) == pytest.approx(480)
    assert forecast.rate(replace(now, prep="tail", cached=1.0)) == pytest.approx(610)
    assert forecast(replace(now, prep="device", cached=1.0)).rate == pytest.approx(1750)
    one_worker = forecast.rate(replace(now, prep="tail", workers=1))
    assert one_worker == pytest.approx(305, rel=0.01)
    given = {one.apply: one for one in advise(known)}
    assert given["--prep device"].gain == pytest.approx(1750 / 480 - 1)
    assert given["--prep tail"].ask == "--prep tail"


def test_what_the_device_would_give_is_not_guessed() -> None:
    known = on_a_gpu(on_device=())
    assert not any("--prep" in one.apply for one in advise(known))
    with pytest.raises(ConfigError, match="--prep tail was not measured"):
        Forecast.of(known)(Share(prep="tail"))


def test_a_cache_and_the_device_together_where_both_hold_the_loop_up() -> None:
    told = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, gpu=2000.0)
    known = on_a_gpu(rates=told, speed=Speed(2000.0, 480.0, 190.0))
    best = advise(known)[0]
    assert best.apply == "--prep device --cache 208MB"
    assert best.rate > 5 * 190


def test_a_store_that_was_not_measured_still_takes_the_time_that_it_took() -> None:
    known = on_a_gpu(speed=Speed(2000.0, 480.0, 300.0))
    waited = 1 / 300 - 1 / 480
    assert Forecast.of(known).rate(Share(prep="device")) == pytest.approx(1 / (1 / 1750 + waited))
    assert Forecast.of(known).rate(Share(prep="device", cached=1.0)) == pytest.approx(1750)


def test_a_device_that_changes_nothing_gains_nothing_where_the_model_is_off() -> None:
    told = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, gpu=2000.0)
    known = on_a_gpu(rates=told, speed=Speed(2000.0, 480.0, 90.0), on_device=(OnDevice("tail", 500.0, 2000.0, 480.0),))
    forecast = Forecast.of(known)
    for cached in (0.0, 0.5, 1.0):
        assert forecast.rate(Share(cached=cached, prep="tail")) == pytest.approx(forecast.rate(Share(cached=cached)))
    all_cached = replace(known, cached=1.0)
    assert Forecast.of(all_cached).rate(Share(cached=1.0, prep="tail")) == pytest.approx(480)


def test_why_no_cache_is_enough_is_said_of_the_device_that_was_asked_about() -> None:
    told = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, storage=0.0, storage_by_readers={}, gpu=2000.0)
    known = on_a_gpu(rates=replace(told, handover=1000.0))
    for answer in (
        smallest_cache(Forecast.of(known), Share(prep="tail")),
        fewest_cores(Forecast.of(known), Share(prep="tail")),
    ):
        assert answer.value is not None or "handing" not in answer.reason


def test_a_device_that_prepares_as_fast_as_samples_are_read_makes_no_storage_faster() -> None:
    """Its workers only read, and chance alone makes them faster than reading from the cache was seen to be."""
    told = rates(prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, gpu=1e5, cache=5000.0)
    fast = OnDevice("device", 6000.0, 1e5, 6000.0)
    forecast = Forecast.of(on_a_gpu(rates=told, speed=Speed(1e5, 500.0, 160.0), on_device=(fast,)))
    assert forecast.rate(Share(prep="device", cached=1.0)) == pytest.approx(6000)
    assert forecast.rate(Share(prep="device")) <= 200


def test_with_the_device_too_nothing_is_faster_from_storage_than_from_the_cache() -> None:
    """Here the model is cautious about storage, and was seen to be so where that mattered."""
    told = rates(
        prep=500.0, prep_by_workers={1: 250.0, 2: 500.0}, gpu=2000.0, storage=4000.0, storage_by_readers={2: 4000.0}
    )
    known = on_a_gpu(rates=told, speed=Speed(2000.0, 480.0, 479.0))
    forecast = Forecast.of(known)
    assert forecast.scale.cold > 1.05 * forecast.scale.cached
    for part, seen in (("tail", 610.0), ("device", 1750.0)):
        assert forecast.rate(Share(prep=part)) <= 1.001 * seen
