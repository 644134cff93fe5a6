"""The engine alone: events in, actions out."""

from collections import defaultdict

import pytest
from tests.schedule.clusters import CONTENT, HUNGRY, job, servers

from stoker.errors import ConfigError
from stoker.schedule.engine import Engine
from stoker.schedule.events import (
    Adopted,
    Cancelled,
    Change,
    End,
    Finished,
    JobProgress,
    Renew,
    RoundEnded,
    ServerBack,
    ServerLost,
    Start,
    Stopped,
    Submitted,
)
from stoker.schedule.job import Server
from stoker.schedule.rules import Rules


def engine_with(*jobs, count=1, **rules):
    engine = Engine(servers(count), Rules(**rules))
    for one in jobs:
        engine.handle(Submitted(one), 0.0)
    return engine


def kinds(actions):
    return [(type(action).__name__, action.lease.job_id) for action in actions]


def test_a_job_runs_from_the_next_round_on_and_its_lease_is_renewed():
    engine = engine_with(job("a"))
    assert engine.leases == []
    first = engine.handle(RoundEnded(), 0.0)
    assert kinds(first) == [("Start", "a")]
    assert engine.handle(RoundEnded(), 300.0) == [Renew(first[0].lease)]


def test_who_needs_cores_gets_them_from_who_does_not():
    engine = engine_with(job("hungry", HUNGRY), *(job(f"content{number}") for number in range(7)))
    leases = {action.lease.job_id: action.lease for action in engine.handle(RoundEnded(), 0.0)}
    assert leases["hungry"].placement.demand.cpus == 12
    assert leases["hungry"].rate == pytest.approx(2.9 * leases["hungry"].proportional_rate)
    proportional = engine_with(job("hungry", HUNGRY), job("content"), mechanism="proportional")
    given = {action.lease.placement.demand.cpus for action in proportional.handle(RoundEnded(), 0.0)}
    assert given == {3.0}


def test_greedy_leaves_gpus_idle_where_tune_serves_all():
    hungry = [job(f"j{number}", HUNGRY) for number in range(8)]
    assert len(engine_with(*hungry, mechanism="greedy").handle(RoundEnded(), 0.0)) == 2
    assert len(engine_with(*hungry, mechanism="tune").handle(RoundEnded(), 0.0)) == 8


def test_a_job_that_others_precede_is_checkpointed_and_waits():
    engine = engine_with(job("long", gpus=8, iterations=100_000), policy="srtf")
    engine.handle(RoundEnded(), 0.0)
    engine.handle(Submitted(job("short", gpus=8, iterations=100)), 10.0)
    actions = engine.handle(RoundEnded(), 300.0)
    assert kinds(actions) == [("End", "long"), ("Start", "short")]
    engine.handle(Finished("short"), 400.0)
    again = engine.handle(RoundEnded(), 600.0)
    assert kinds(again) == [("Start", "long")]
    assert again[0].lease.number == 2
    assert engine.standing("long").done == pytest.approx(300)


def test_a_job_that_does_not_fit_is_passed_by_smaller_ones():
    engine = engine_with(job("a", gpus=5), job("b", gpus=5), job("c", gpus=3))
    assert kinds(engine.handle(RoundEnded(), 0.0)) == [("Start", "a"), ("Start", "c")]
    standing = engine.standing("b")
    assert (standing.position, standing.gpus_ahead, standing.lease) == (1, 5, None)


def test_a_large_job_has_the_same_for_each_gpu_on_the_fewest_servers():
    engine = engine_with(job("large", HUNGRY, gpus=12), job("small", HUNGRY, gpus=4), count=3)
    lease = engine.handle(RoundEnded(), 0.0)[0].lease
    assert sorted(share.gpus for share in lease.placement.shares) == [4, 8]
    assert len({(share.cpus / share.gpus, share.memory_gb / share.gpus) for share in lease.placement.shares}) == 1


def test_a_job_that_fits_one_server_is_not_spread():
    engine = engine_with(*(job(f"j{number}", gpus=4) for number in range(4)), count=2)
    assert all(len(action.lease.placement.shares) == 1 for action in engine.handle(RoundEnded(), 0.0))


def test_a_lost_server_sends_its_jobs_back_to_the_queue():
    engine = engine_with(job("a", gpus=8), job("b", gpus=8), count=2)
    where = {action.lease.job_id: action.lease.placement.shares[0].server for action in engine.handle(RoundEnded(), 0.0)}
    actions = engine.handle(ServerLost(where["a"]), 100.0)
    assert kinds(actions) == [("End", "a")]
    assert [one.id for one in engine.waiting] == ["a"]
    moved = engine.handle(RoundEnded(), 300.0)
    assert kinds(moved) == [("End", "b"), ("Start", "a")]  # the first that came is the first that runs
    engine.handle(ServerBack(Server(where["a"], 8, 24, 500.0)), 400.0)
    assert sorted(lease.job_id for lease in _after(engine, 600.0)) == ["a", "b"]


def test_all_servers_may_be_lost():
    engine = engine_with(job("a"))
    engine.handle(RoundEnded(), 0.0)
    assert kinds(engine.handle(ServerLost("s0"), 1.0)) == [("End", "a")]
    assert engine.handle(RoundEnded(), 300.0) == []
    assert engine.standing("a").lease is None
    engine.handle(Submitted(job("b")), 400.0)
    engine.handle(ServerBack(servers(1)[0]), 500.0)
    assert kinds(engine.handle(RoundEnded(), 600.0)) == [("Start", "a"), ("Start", "b")]


def _after(engine, now):
    engine.handle(RoundEnded(), now)
    return engine.leases


def test_cancelled_stopped_and_unknown_jobs():
    engine = engine_with(job("a"), job("b"))
    leases = {action.lease.job_id: action.lease for action in engine.handle(RoundEnded(), 0.0)}
    assert engine.handle(Cancelled("a"), 10.0) == [End(leases["a"], "cancelled")]
    engine.handle(Stopped("b"), 20.0)
    assert [one.id for one in engine.waiting] == ["b"]
    for event in (Cancelled("a"), Finished("nobody"), JobProgress("a", 1.0), Stopped("a")):
        with pytest.raises(ConfigError, match="is not there"):
            engine.handle(event, 30.0)
    assert kinds(engine.handle(RoundEnded(), 300.0)) == [("Start", "b")]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (job("big", gpus=9), "job big asks for 9 GPUs, and the cluster has 8"),
        (job("a"), "job a is there already"),
        (job("none", iterations=0), "at least one GPU and one iteration"),
    ],
)
def test_a_job_that_cannot_be_changes_nothing(wrong, words):
    engine = engine_with(job("a"))
    with pytest.raises(ConfigError, match=words):
        engine.handle(Submitted(wrong), 0.0)
    assert [one.id for one in engine.waiting] == ["a"]


def test_a_job_that_cannot_be_restarted_keeps_its_place_to_its_end():
    fixed = job("fixed", HUNGRY, restartable=False, iterations=10**6)
    engine = engine_with(fixed, policy="srtf", count=1)
    lease = engine.handle(RoundEnded(), 0.0)[0].lease
    assert lease.placement.demand.cpus <= 3
    for number in range(20):
        engine.handle(Submitted(job(f"j{number}", HUNGRY)), 10.0)
    actions = engine.handle(RoundEnded(), 300.0)
    assert Renew(lease) in actions
    assert len(engine.leases) == 8


def test_rounding_moves_no_job_that_is_on_several_servers():
    engine = Engine([Server(name, 8, 0.4249336698094676, 500.0) for name in "ab"], Rules(switch_cost_s=1.0))
    engine.handle(Submitted(job("wide", gpus=13, restartable=False)), 0.0)
    (first,) = engine.handle(RoundEnded(), 0.0)
    engine.handle(Submitted(job("new")), 10.0)
    assert engine.handle(RoundEnded(), 300.0)[0] == Renew(first.lease)


def test_a_lease_changes_only_if_all_gain_more_than_that_costs():
    def changed(cost_s):
        engine = engine_with(job("a", HUNGRY), job("b", HUNGRY), job("c", HUNGRY), switch_cost_s=cost_s)
        engine.handle(RoundEnded(), 0.0)
        engine.handle(Finished("b"), 100.0)
        return [action for action in engine.handle(RoundEnded(), 300.0) if isinstance(action, Change)]

    assert changed(1.0)
    assert not changed(299.0)


@pytest.mark.parametrize("policy", ["las", "ftf", "drf"])
def test_jobs_that_take_turns_get_further_where_a_start_takes_longer_than_a_round(policy):
    engine = engine_with(job("a", gpus=8), job("b", gpus=8), policy=policy, switch_cost_s=700.0)
    for number in range(40):
        engine.handle(RoundEnded(), 300.0 * number)
    assert min(engine.standing(name).done for name in "ab") > 0


def test_equal_servers_are_named_such_that_jobs_stay():
    engine = engine_with(*(job(f"j{number}", gpus=8) for number in range(4)), count=4)
    where = {action.lease.job_id: action.lease for action in engine.handle(RoundEnded(), 0.0)}
    engine.handle(Finished("j0"), 100.0)
    engine.handle(Submitted(job("new", gpus=8)), 200.0)
    actions = engine.handle(RoundEnded(), 300.0)
    assert actions[:3] == [Renew(where[f"j{number}"]) for number in (1, 2, 3)]
    assert kinds(actions)[-1] == ("Start", "new")


def test_new_jobs_are_put_beside_those_that_stay():
    engine = engine_with(job("a", HUNGRY), job("b", HUNGRY), switch_cost_s=250.0)
    engine.handle(RoundEnded(), 0.0)
    for number in range(6):
        engine.handle(Submitted(job(f"j{number}", HUNGRY)), 10.0)
    engine.handle(RoundEnded(), 300.0)
    assert len(engine.leases) == 8
    assert all(lease.rate >= lease.proportional_rate for lease in engine.leases)
    assert sum(lease.placement.demand.cpus for lease in engine.leases) <= 24


def test_measured_rates_correct_the_matrix():
    engine = engine_with(job("a", HUNGRY))
    lease = engine.handle(RoundEnded(), 0.0)[0].lease
    engine.handle(JobProgress("a", 290.0, rate=lease.rate / 2), 300.0)
    standing = engine.standing("a")
    assert standing.done == 290
    assert standing.job.matrix.rate(12, 125) == lease.rate / 2
    assert standing.job.matrix.rate(6, 125) <= lease.rate / 2


def test_a_driver_that_was_restarted_goes_on_with_what_runs():
    first = engine_with(job("a", HUNGRY), job("b"))
    leases = [action.lease for action in first.handle(RoundEnded(), 0.0)]
    second = Engine(servers(1), Rules())
    for one, lease in zip((job("a", HUNGRY), job("b")), leases, strict=True):
        second.handle(Submitted(one, done=50.0, attained_s=100.0, leases=1), 100.0)
        second.handle(Adopted(lease), 100.0)
    assert second.handle(RoundEnded(), 300.0) == [Renew(lease) for lease in leases]
    with pytest.raises(ConfigError, match="not there"):
        Engine([Server("other", 8, 24, 500.0)], Rules()).handle(Adopted(leases[0]), 0.0)


def order(policy, *jobs, attained=(), **rules):
    engine = Engine(servers(1), Rules(policy=policy, **rules))
    for number, one in enumerate(jobs):
        had = attained[number] if attained else 0.0
        engine.handle(Submitted(one, attained_s=had), 100.0)
    engine.handle(RoundEnded(), 1000.0)
    return sorted("abc"[: len(jobs)], key=lambda name: engine.standing(name).position)


def test_the_order_of_each_policy():
    jobs = (
        job("a", arrival_s=0, iterations=500),
        job("b", arrival_s=50, iterations=100),
        job("c", arrival_s=90, iterations=300),
    )
    assert order("fifo", *jobs) == ["a", "b", "c"]
    assert order("srtf", *jobs) == ["b", "c", "a"]
    assert order("las", *jobs, attained=(30.0, 20.0, 10.0)) == ["c", "b", "a"]
    assert order("ftf", *jobs) == ["b", "c", "a"]
    assert order("ftf", *jobs, as_published=True) == ["a", "c", "b"]
    assert order("tetris", *jobs) == ["b", "c", "a"]


def test_service_counts_gpus_and_time_does_not():
    jobs = job("a", iterations=300), job("b", iterations=200, gpus=4), job("c", iterations=900, gpus=1)
    assert order("srtf", *jobs) == ["b", "a", "c"]
    assert order("srsf", *jobs) == ["a", "b", "c"]


def test_drf_serves_the_user_with_the_least_share():
    jobs = job("a", gpus=4, user="one"), job("b", gpus=4, user="one", arrival_s=1), job("c", user="other", arrival_s=2)
    assert order("drf", *jobs) == ["a", "c", "b"]


def test_tetris_prefers_what_fits_what_is_free():
    jobs = job("a", CONTENT, gpus=1, iterations=1000), job("b", HUNGRY, gpus=4, iterations=1000)
    assert order("tetris", *jobs) == ["b", "a"]


def test_rules_are_checked():
    with pytest.raises(ConfigError, match="no policy 'sjf': choose one of fifo"):
        Engine(servers(1), Rules(policy="sjf"))
    with pytest.raises(ConfigError, match="no mechanism 'best': choose one of proportional"):
        Engine(servers(1), Rules(mechanism="best"))


def test_every_start_is_of_a_new_lease():
    engine, seen = engine_with(*(job(f"j{number}", HUNGRY, gpus=4) for number in range(5)), policy="las"), defaultdict(set)
    for number in range(12):
        for action in engine.handle(RoundEnded(), 300.0 * number):
            if isinstance(action, Start | Change):
                assert action.lease.number not in seen[action.lease.job_id]
                seen[action.lease.job_id].add(action.lease.number)
    assert all(numbers == set(range(1, len(numbers) + 1)) for numbers in seen.values())
    assert len(seen) == 5
