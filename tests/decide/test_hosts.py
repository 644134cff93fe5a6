"""Several hosts with one cache: the closed forms against a replay, and what is predicted of an epoch."""

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.pipeline import Pipeline
from tests.test_profile import SMALLEST

from stoker.cache.replay_hosts import replay_hosts
from stoker.cache.shares import shares_of
from stoker.decide.forecast import Forecast, as_measured
from stoker.decide.hosts import HostsPrediction, Tiers, on_hosts, tiers
from stoker.decide.model import Share, predict
from stoker.errors import ConfigError
from stoker.order import Drawn
from stoker.profile import Profile, Rates


@pytest.mark.parametrize(("hosts", "cached"), [(1, 0.4), (2, 0.65), (3, 0.2), (3, 1 / 3), (4, 0.3), (2, 0.0), (2, 1.0)])
def test_where_samples_are_as_a_replay_has_it(hosts: int, cached: float) -> None:
    samples = 1200
    played = replay_hosts(
        shares_of(Drawn(samples, seed=2), hosts), [round(cached * samples)] * hosts, policy="keep-first", epochs=10, ahead=1
    ).total(after=2)
    found = tiers(hosts, cached)
    assert found.here == pytest.approx(played.service_hits / played.uses, abs=0.015)
    assert found.peer == pytest.approx(played.peer_hits / played.uses, abs=0.015)
    assert found.storage == pytest.approx(played.storage_reads / played.uses, abs=0.002)
    assert found.here + found.peer + found.storage == pytest.approx(1)


def profile(**rates: Any) -> Profile:
    made = Profile.of_document(SMALLEST)
    return replace(made, rates=replace(made.rates, storage_by_readers={1: 200.0, 2: 200.0}, **rates))


def asked(hosts: int, cached: float, network: float | None, **rates: Any) -> HostsPrediction:
    made = profile(**rates)
    return on_hosts(made, Forecast.of(made), replace(as_measured(made), cached=cached), hosts, network)


def test_a_fast_network_is_as_good_as_a_cache_of_ones_own() -> None:
    found = asked(2, 0.5, 1e12)
    assert found.tiers == Tiers(0.5, 0.5, 0.0)
    assert found.rate == pytest.approx(2 * 990, rel=0.01)
    assert found.epoch_s == pytest.approx(2000 / found.rate)
    assert found.without_peers < 0.5 * found.rate


def test_a_slow_network_is_the_limit() -> None:
    network = 10.4e6  # 100 samples a second
    found = asked(2, 0.5, network)
    assert found.prediction.rate == pytest.approx(100 / 0.5, rel=0.1)
    assert found.prediction.limit == "fetch"
    assert found.network_bytes_per_s == pytest.approx(network, rel=0.1)
    assert found.network_bytes_per_s <= network
    assert 1.005 < found.epoch_s * found.rate / 2000 < 1.05  # one of two hosts needs more than half from the other


def test_a_job_that_was_seen_to_be_slower_than_its_parts_does_not_slow_the_link() -> None:
    plain = profile()
    slow, fast = 10.4e6, 1e12
    cached = Forecast.of(plain).rate(replace(as_measured(plain), cached=1.0))
    for part in (0.6, 1.1):
        seen = replace(plain, speed=replace(plain.speed, cached=part * cached))
        share = replace(as_measured(seen), cached=0.5)
        by_link, by_prep = (on_hosts(seen, Forecast.of(seen), share, 2, network).rate for network in (slow, fast))
        assert by_link == pytest.approx(asked(2, 0.5, slow).rate, rel=0.03)
        assert by_prep == pytest.approx(2 * part * cached, rel=0.02)


def test_all_ranks_of_a_host_have_one_link() -> None:
    made = replace(profile(), world=2)
    given = replace(as_measured(made), cached=0.5)
    found = on_hosts(made, Forecast.of(made), given, 2, 10.4e6)
    assert found.share.network == pytest.approx(50)
    assert found.rate == pytest.approx(4 * found.prediction.rate)


def test_what_peers_were_measured_to_give_counts_without_a_network_and_with_a_faster_one() -> None:
    measured = asked(2, 0.5, None, peer=100.0)
    assert measured.rate == pytest.approx(asked(2, 0.5, 10.4e6).rate)
    assert measured.rate == pytest.approx(asked(2, 0.5, 1e12, peer=100.0).rate)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="by --network"):
        asked(2, 0.5, None)
    assert asked(1, 0.5, None).tiers.peer == 0
    made = profile()
    unsized = replace(made, dataset=replace(made.dataset, bytes=0))
    with pytest.raises(ConfigError, match="needs the dataset's size"):
        on_hosts(unsized, Forecast.of(unsized), as_measured(unsized), 2, 1e9)
    with pytest.raises(ConfigError, match="at least one host"):
        tiers(0, 0.5)
    with pytest.raises(ConfigError, match="from 0 to 1"):
        tiers(2, 1.5)
    with pytest.raises(ConfigError, match=r"leave no 0\.6 to other hosts"):
        Share(cached=0.5, peers=0.6)


def rates(workers: int) -> Rates:
    by_workers = {1: 1000.0, workers: 1000.0 * workers}
    return Rates(
        gpu=1e6, prep=1000.0 * workers, storage=100.0, cache=1e9, workers=workers, cores=64.0, prep_by_workers=by_workers,
        storage_by_readers={1: 100.0, workers: 100.0}, spread=0.0,
    )  # fmt: skip


def test_one_worker_reads_from_one_after_the_other() -> None:
    found = predict(rates(1), Share(cached=0.2, peers=0.6, network=400.0))
    assert found.rate == pytest.approx(1 / (1 / 1000 + 0.6 / 400 + 0.2 / 100), rel=0.01)


def test_many_workers_read_from_both_at_once() -> None:
    found = predict(rates(16), Share(cached=0.2, peers=0.6, network=400.0))
    assert found.rate == pytest.approx(min(400 / 0.6, 100 / 0.2), rel=0.1)
    assert predict(rates(16), Share(cached=0.2, peers=0.6)).rate == pytest.approx(100 / 0.2, rel=0.1)
    assert predict(rates(16), Share(cached=0.2, peers=0.8, network=400.0)).rate == pytest.approx(400 / 0.8, rel=0.1)


def test_a_loop_without_workers_adds_all_up() -> None:
    told = replace(rates(1), workers=0, gpu=500.0)
    found = predict(told, Share(cached=0.5, peers=0.5, network=400.0))
    assert found.rate == pytest.approx(1 / (1 / 500 + 1 / 1000 + 0.5 / 400), rel=0.01)


def simulated_error(seed: int) -> float:
    """Of a loader near balance that reads from a store and over a link, each for one reader at a time."""
    rng = random.Random(seed)
    workers, prep_s, cached = rng.choice([1, 2, 4, 8]), rng.uniform(0.5e-3, 2e-3), rng.choice([0.0, 0.25, 0.5])
    pipeline = Pipeline(
        workers=workers, cores=rng.choice([64, workers]), batch=32, prep_s=prep_s, hit_s=0.01 * prep_s, cached=cached,
        transfer_s=prep_s / workers * math.exp(rng.uniform(-1, 1)), spread=rng.choice([0.0, 0.3, 0.6]),
        peers=(1 - cached) * rng.choice([0.25, 0.5, 0.75, 1.0]), link_s=prep_s / workers * math.exp(rng.uniform(-1, 1)),
    )  # fmt: skip
    share = Share(cached=cached, peers=pipeline.peers, network=1 / pipeline.link_s)
    return abs(predict(pipeline.measured(100), share).rate / pipeline.rate(100, seed) - 1)


def test_against_a_simulated_loader() -> None:
    errors = [simulated_error(seed) for seed in range(30)]
    assert statistics.median(errors) <= 0.02
    assert max(errors) <= 0.10
