"""Plans: what is decided, why, and the document."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decide.test_whatif import on_a_gpu, profile, rates

from stoker.decide.planner import decide, render
from stoker.plan import Plan
from stoker.profile import Profile, Rates


def planned(told: Rates, **values: Any) -> Plan:
    return decide(profile(told, **values)).plan


def test_a_slow_disk_gets_a_cache(tmp_path: Path) -> None:
    decision = decide(profile(rates()))
    assert decision.plan == Plan("processes", 2, 2, cache_bytes=208_000_000, cache_policy="keep-first")
    assert decision.after.rate == pytest.approx(1000)
    assert decision.before.rate == pytest.approx(200, rel=0.05)
    text = render(decision.plan, decision.reasons, "why")
    (tmp_path / "plan.toml").write_text(text)
    assert Plan.load(tmp_path / "plan.toml") == decision.plan
    assert text.startswith("# why\nversion = 1\n")
    for line in text.splitlines():
        if " = " in line and not line.startswith(("version", "#")):
            assert "  # " in line, line


def test_a_cache_no_larger_than_the_room_and_than_is_needed() -> None:
    small = profile(rates())
    small = replace(small, host=replace(small.host, room_bytes=50 * 10**6))
    assert decide(small).plan.cache_bytes == 50 * 10**6
    enough = replace(small, rates=rates(gpu=300.0), host=replace(small.host, room_bytes=208 * 10**6))
    size = decide(enough).plan.cache_bytes
    assert size is not None
    assert 0.3 * 208e6 < size < 0.5 * 208e6
    assert decide(enough).after.rate >= 0.97 * 300


def test_a_loop_that_is_fed_stays_as_it_is() -> None:
    plan = planned(rates(gpu=100.0))
    assert (plan.num_workers, plan.cache_bytes) == (2, None)


def test_a_loader_without_workers_gets_some() -> None:
    told = rates(workers=0, cores=4.0, storage=1e5, storage_by_readers={}, gpu=1400.0)
    decision = decide(profile(told))
    assert decision.plan.num_workers == 2
    assert "where 0 give" in decision.reasons["num_workers"]


def test_workers_that_wait_may_be_more_than_cores() -> None:
    told = rates(storage=100.0, storage_by_readers={1: 50.0, 2: 100.0})
    decision = decide(profile(told, dataset=replace(profile(told).dataset, bytes=0)))
    assert decision.plan.num_workers == 4
    assert "more than cores" in decision.reasons["num_workers"]
    assert "uncertain" in decision.reasons["num_workers"]


def test_threads_where_they_are_as_good() -> None:
    assert planned(rates(prep_by_threads={2: 1490.0})).workers == "threads"
    assert planned(rates(prep_by_threads={2: 1000.0})).workers == "processes"
    assert planned(rates(), workers_kind="threads").workers == "threads"


def test_prefetch_is_deeper_for_small_batches_that_differ() -> None:
    told = rates(spread=1.0, gpu=100.0)
    depths = [planned(told, batch_size=size).prefetch_factor for size in (256, 16, 1)]
    assert depths == [2, 4, 8]


@settings(max_examples=40, deadline=None)
@given(
    gpu=st.floats(10, 1e5), prep=st.floats(10, 1e5), storage=st.floats(0, 1e5), workers=st.integers(0, 8),
    room=st.integers(0, 10**9), size=st.integers(0, 10**9), known=st.booleans(),
)  # fmt: skip
def test_any_profile_gives_a_plan_that_loads_and_does_not_slow_down(
    tmp_path_factory: pytest.TempPathFactory,
    gpu: float,
    prep: float,
    storage: float,
    workers: int,
    room: int,
    size: int,
    known: bool,
) -> None:
    told = Rates(gpu=gpu, prep=prep, storage=storage, cache=1e6, workers=workers, cores=4.0)
    base = profile(told)
    any_profile: Profile = replace(
        base, host=replace(base.host, room_bytes=room), dataset=replace(base.dataset, bytes=size, bytes_known=known)
    )
    decision = decide(any_profile)
    path = tmp_path_factory.getbasetemp() / "plan.toml"
    path.write_text(render(decision.plan, decision.reasons))
    assert Plan.load(path) == decision.plan
    assert decision.after.rate >= 0.97 * decision.before.rate
    assert {field.name for field in fields(Plan) if getattr(decision.plan, field.name) is not None} == set(decision.reasons)


def test_reasons_are_one_line_and_text_is_quoted(tmp_path: Path) -> None:
    plan = Plan(cache_dir='/mnt/a "b"', overhead=0.03)
    text = render(plan, {"cache_dir": "two\nlines # here"})
    (tmp_path / "plan.toml").write_text(text)
    assert Plan.load(tmp_path / "plan.toml") == plan
    assert "# two lines # here" in text


def test_a_device_prepares_where_it_was_faster(tmp_path: Path) -> None:
    decision = decide(on_a_gpu())
    assert (decision.plan.prep, decision.plan.workers) == ("device", "processes")
    assert decision.after.rate == pytest.approx(1750, rel=0.01)
    assert decision.reasons["prep"].endswith("last bit of some pixels: 1,750 samples/s, where 480 come without")
    (tmp_path / "plan.toml").write_text(render(decision.plan, decision.reasons))
    assert Plan.load(tmp_path / "plan.toml").prep == "device"
    as_good = replace(on_a_gpu().on_device[1], cached=620.0, loop=625.0)
    exact = decide(replace(on_a_gpu(), on_device=(on_a_gpu().on_device[0], as_good)))
    assert exact.plan.prep == "tail"
    assert "the same numbers" in exact.reasons["prep"]
    assert decide(replace(on_a_gpu(), fixed=("prep",))).plan.prep is None
