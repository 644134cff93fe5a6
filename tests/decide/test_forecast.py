"""The forecast of a measured job: one answer to one question, for all who ask it."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.decide.test_whatif import profile, rates
from tests.report.profiles import random_case

from stoker.cli import main
from stoker.decide.forecast import Forecast, as_measured, verdict
from stoker.decide.limit import HELD_UP, limit_of, stalls_of
from stoker.decide.model import Share, predict
from stoker.decide.planner import decide
from stoker.decide.whatif import advise
from stoker.profile import DatasetSize, Host, Profile, Speed, Stalls

CASES = 150


def measured_jobs() -> Iterator[Profile]:
    """Jobs as an analysis leaves them, whose loops went faster or slower than their stages say."""
    draw = random.Random(14)
    for _ in range(CASES):
        told, _, sure = random_case(draw)
        share = Share(workers=told.workers, cached=draw.choice([0.0, 0.0, 0.3]))
        cold, cached = (predict(told, one).rate for one in (share, replace(share, cached=1.0)))
        off = draw.choice([1.0, draw.uniform(0.4, 1.3)])
        speed = Speed(told.gpu, cached * off * draw.uniform(0.9, 1.1), cold * off)
        stalls = stalls_of(speed)
        yield profile(
            told,
            host=Host(told.cores, 8 * 10**9, "cpu", room_bytes=draw.choice([10**7, 10**9])),
            dataset=DatasetSize(2000, draw.choice([0, 208 * 10**6]), True),
            speed=speed,
            stalls=stalls,
            limit=limit_of(stalls.prep, stalls.fetch),
            confidence=sure,
            cached=share.cached,
            fixed=draw.choice([(), ("num_workers",), ("num_workers", "prefetch_factor")]),
        )


JOBS = list(measured_jobs())


def test_the_forecast_for_what_was_measured_is_what_was_measured() -> None:
    for job in JOBS:
        now = Forecast.of(job)(as_measured(job))
        assert now.rate == pytest.approx(job.speed.cold)
        assert (now.prep_stall, now.fetch_stall) == (
            pytest.approx(job.stalls.prep, abs=1e-6),
            pytest.approx(job.stalls.fetch, abs=1e-6),
        )
        assert now.low <= now.rate <= now.high


def test_limit_and_bars_agree_for_every_job_and_every_share() -> None:
    for job in JOBS:
        seen = verdict(job)
        assert seen.rate == job.speed.cold
        assert seen.limit == job.limit
        assert seen.compute + seen.prep + seen.fetch == pytest.approx(1)
        for share in (as_measured(job), Share(workers=4, cached=0.5), Share(workers=8, gpu_factor=2)):
            then = Forecast.of(job)(share)
            assert (then.limit == "gpu") == (then.stall < HELD_UP)
            if then.limit != "gpu":
                assert then.limit == ("prep" if then.prep_stall >= then.fetch_stall else "fetch")


def test_advice_and_whatif_give_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = 0
    for job in JOBS:
        job.save(tmp_path / "profile.json")
        for one in advise(job):
            assert main(["whatif", str(tmp_path / "profile.json"), "--json", *one.ask.split()]) == 0
            answer = json.loads(capsys.readouterr().out)
            (row,) = answer["asked"]
            assert row["rate"] == pytest.approx(one.rate)
            assert answer["now"]["rate"] == pytest.approx(job.speed.cold)
            assert one.gain == pytest.approx(row["rate"] / job.speed.cold - 1)
            asked += 1
    assert asked > CASES / 3


def test_no_advice_to_a_loop_that_is_fed_and_none_within_the_bands() -> None:
    advised = 0
    for job in JOBS:
        forecast = Forecast.of(job)
        now = forecast(as_measured(job))
        found = advise(job)
        assert not found or now.limit != "gpu"
        for one in found:
            advised += 1
            assert one.gain > 0
            assert one.rate > now.high
    assert advised


def test_a_plan_changes_nothing_that_the_script_has_fixed_and_promises_nothing_for_it() -> None:
    fixed = [job for job in JOBS if "num_workers" in job.fixed]
    open_jobs = [replace(job, fixed=()) for job in fixed]
    for job in fixed:
        decision = decide(job)
        assert decision.plan.num_workers == decision.share.workers == job.workers
        assert decision.after.rate == Forecast.of(job)(decision.share).rate
        if "prefetch_factor" in job.fixed and job.workers:
            assert decision.plan.prefetch_factor == job.prefetch
    assert any(decide(job).plan.num_workers != job.workers for job in open_jobs)


def test_a_gain_does_not_come_from_what_the_model_is_off() -> None:
    told = rates(prep=250.0, prep_by_workers={1: 125.0, 2: 250.0}, storage=0.0, storage_by_readers={})
    for off in (0.5, 0.8, 1.0, 1.2):
        seen = 250.0 * off
        job = profile(told, speed=Speed(1000.0, seen, seen), stalls=Stalls(1 - seen / 1000, 0.0), limit="prep")
        (one,) = advise(job)
        assert one.gain == pytest.approx(min(2 * seen, 1000) / seen - 1, rel=1e-3)
        assert one.rate == pytest.approx(min(2 * seen, 1000), rel=1e-3)


def test_parts_of_the_time_in_whatever_order_chance_has_put_the_speeds() -> None:
    assert stalls_of(Speed(1000.0, 500.0, 250.0)) == Stalls(0.25, 0.5)
    assert stalls_of(Speed(1000.0, 400.0, 500.0)) == Stalls(0.5, 0.0)
    assert stalls_of(Speed(1000.0, 1200.0, 500.0)) == Stalls(0.0, 0.5)
    assert stalls_of(Speed(1000.0, 1200.0, 1100.0)) == Stalls(0.0, 0.0)
    assert stalls_of(Speed(0.0, 0.0, 0.0)) == Stalls(0.0, 0.0)


def test_a_loop_that_was_not_measured_is_judged_by_the_model() -> None:
    seen = verdict(profile(rates(), limit="gpu"))
    assert (seen.rate, seen.limit) == (0.0, "fetch")
    assert verdict(profile(rates(prep=0.0), limit="prep")).limit == "prep"
