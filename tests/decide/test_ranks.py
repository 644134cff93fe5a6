"""Plans for several ranks on several hosts."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decide.test_whatif import profile, rates

from stoker.decide.planner import decide, render
from stoker.decide.ranks import RanksDecision, decide_ranks
from stoker.errors import ConfigError
from stoker.plan import MOST_READERS, READERS, Plan
from stoker.profile import OnDevice, Profile, Rates, Speed


def on_eight_cores(**values: object) -> Profile:
    told = rates(
        **{"workers": 4, "cores": 8.0, "prep": 3000.0, "prep_by_workers": {1: 750.0, 4: 3000.0, 8: 6000.0}} | values
    )
    return profile(told)


def row(made: RanksDecision, name: str) -> tuple[str, str]:
    return next((one.rank, one.host) for one in made.rows if one.name.strip() == name)


def test_as_measured_it_is_the_plan_of_the_analysis() -> None:
    told = profile(rates())
    assert decide_ranks(told, 1, 1).decision == decide(told)
    two = replace(told, world=2)
    assert decide_ranks(two, 1, 2).decision == decide(two)


def test_ranks_share_the_cores() -> None:
    told = on_eight_cores(gpu=6000.0, storage=0.0, storage_by_readers={})
    one, four = decide_ranks(told, 1, 1), decide_ranks(told, 1, 4)
    assert row(one, "workers") == ("8", "8")
    assert row(four, "workers") == ("2", "8")
    assert four.decision.after.rate == pytest.approx(one.decision.after.rate / 4, rel=0.05)
    assert "as good as 4 on 2 cores" in four.decision.reasons["num_workers"]


def test_and_what_the_storage_gives() -> None:
    told = profile(rates(gpu=100.0), dataset=replace(profile(rates()).dataset, bytes=0))
    assert decide_ranks(told, 1, 2).decision.before.rate == pytest.approx(100, rel=0.05)
    assert decide_ranks(told, 1, 4).decision.before.rate == pytest.approx(50, rel=0.05)


def with_room(part: float, *fixed: str) -> Profile:
    """A host whose memory takes a part of the data."""
    told = profile(rates(), fixed=fixed)
    return replace(told, host=replace(told.host, room_bytes=round(part * told.dataset.bytes)))


def test_hosts_that_know_their_order_keep_what_comes_back_soonest() -> None:
    told = with_room(0.296, "seed")
    alone, eight = decide_ranks(told, 1, 1).decision, decide_ranks(told, 8, 1).decision
    assert (alone.plan.cache_policy, eight.plan.cache_policy) == ("keep-first", "reuse-distance")
    assert eight.plan.cache_bytes == alone.plan.cache_bytes
    assert "30% with one cache for its ranks, 64% with one for each rank" in eight.reasons["cache_policy"]
    assert eight.after.rate > 1.2 * alone.after.rate


def test_others_are_told_what_they_would_gain() -> None:
    eight = decide_ranks(with_room(0.296), 8, 1).decision
    assert eight.plan == decide_ranks(with_room(0.296), 1, 1).decision.plan
    assert "reuse-distance would have 64%, but needs seed=" in eight.reasons["cache_policy"]
    assert decide_ranks(with_room(1.0, "seed"), 8, 1).decision.plan.cache_policy == "keep-first"


def test_a_cache_for_each_rank_takes_no_more_than_one_for_all() -> None:
    told = with_room(0.296, "seed")
    four, eight = decide_ranks(told, 8, 4), decide_ranks(told, 8, 8)
    assert four.decision.plan.cache_policy == "reuse-distance"
    assert row(four, "cache") == ("15.4 MB", "61.6 MB")
    assert 4 * (four.decision.plan.cache_bytes or 0) <= 0.296 * told.dataset.bytes
    assert eight.decision.plan.cache_policy == "keep-first"  # an eighth each would find less than all together
    assert row(eight, "cache") == ("", "61.6 MB")
    assert "would have 24%" in eight.decision.reasons["cache_policy"]


def test_reading_and_preparing_are_all_workers_or_fewer() -> None:
    made = decide_ranks(on_eight_cores(gpu=3000.0), 1, 2)
    reading, preparing = (int(row(made, name)[1]) for name in ("reading", "preparing"))
    assert reading >= 2
    assert preparing >= 1
    assert reading + preparing <= int(row(made, "workers")[1])
    few = decide_ranks(on_eight_cores(gpu=300.0, storage=0.0, storage_by_readers={}), 1, 8)
    assert row(few, "workers") == ("1", "8")
    assert "in turn" in next(one.reason for one in few.rows if one.name == "  reading")


def test_what_cannot_be() -> None:
    for hosts, gpus in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="at least one host and one GPU"):
            decide_ranks(profile(rates()), hosts, gpus)


@settings(max_examples=30, deadline=None)
@given(
    gpu=st.floats(10, 1e5), prep=st.floats(10, 1e5), storage=st.floats(0, 1e5), workers=st.integers(0, 8),
    room=st.integers(0, 10**9), hosts=st.integers(1, 4), gpus=st.integers(1, 8), world=st.integers(1, 4),
)  # fmt: skip
def test_any_profile_gives_a_plan_that_loads_twice_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    gpu: float,
    prep: float,
    storage: float,
    workers: int,
    room: int,
    hosts: int,
    gpus: int,
    world: int,
) -> None:
    told = Rates(gpu=gpu, prep=prep, storage=storage, cache=1e6, workers=workers, cores=4.0)
    base = profile(told, world=world)
    made = decide_ranks(replace(base, host=replace(base.host, cores=4.0 * world, room_bytes=room)), hosts, gpus)
    path: Path = tmp_path_factory.getbasetemp() / "ranks.toml"
    path.write_text(render(made.decision.plan, made.decision.reasons))
    assert Plan.load(path) == made.decision.plan
    assert made == decide_ranks(replace(base, host=replace(base.host, cores=4.0 * world, room_bytes=room)), hosts, gpus)
    assert set(made.decision.plan.values()) == set(made.decision.reasons)


def test_more_readers_than_usual_are_asked_for_where_storage_makes_wait() -> None:
    told = on_eight_cores(gpu=3000.0, storage=400.0, storage_by_readers={1: 50.0, 8: 400.0, 16: 700.0})
    roomy = replace(told, host=replace(told.host, cores=64.0, room_bytes=round(0.3 * told.dataset.bytes)))
    made = decide_ranks(roomy, 2, 2)
    assert made.decision.plan.readers is not None
    assert READERS < made.decision.plan.readers <= MOST_READERS
    assert row(made, "reading") == ("", str(made.decision.plan.readers))
    assert decide_ranks(on_eight_cores(gpu=300.0), 1, 2).decision.plan.readers is None


def test_what_the_device_prepares_is_in_the_table_and_what_is_left_to_workers_is_less() -> None:
    told = on_eight_cores(gpu=6000.0, prep=1500.0, prep_by_workers={1: 400.0, 4: 1500.0}, storage=8000.0)
    told = replace(told, speed=Speed(6000.0, 1400.0, 1200.0), on_device=(OnDevice("device", 12000.0, 5800.0, 5700.0),))
    made, without = decide_ranks(told, 1, 1), decide_ranks(replace(told, on_device=()), 1, 1)
    assert row(made, "pixels") == ("--prep device", "")
    assert made.decision.plan.prep == "device"
    assert not [one for one in without.rows if one.name == "pixels"]
    of_workers = [int(row(one, "preparing")[1]) / int(row(one, "workers")[1]) for one in (made, without)]
    assert of_workers[0] < of_workers[1]
