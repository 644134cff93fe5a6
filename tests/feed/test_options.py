"""What a plan fills in, by what a dataset is and not by the names of its attributes."""

import warnings
from typing import Any

import pytest
import torch

import stoker
from stoker.feed.options import Options
from stoker.plan import Plan
from stoker.source.synthetic import Synthetic


class Named(torch.utils.data.Dataset[int]):
    """A user's dataset that has an attribute of the name that one of ours has."""

    cache_name = "mine"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def ours() -> Any:
    return stoker.Dataset(Synthetic(8, 10), lambda raw, index, rng: index)


@pytest.mark.parametrize(("make", "policy"), [(Named, "keep-first"), (ours, "reuse-distance")])
def test_a_planned_policy_is_for_datasets_of_ours(make: Any, policy: str) -> None:
    plan = Plan(cache_bytes=1000, cache_policy="reuse-distance")
    nothing_asked = dict.fromkeys(("cache", "cache_dir", "group", "group_bytes", "group_patience_s"))
    asked = Options(
        seed=1, num_workers=0, prefetch_factor=None, workers="processes", cache_policy="keep-first", **nothing_asked
    )
    assert asked.resolved(make(), plan).cache_policy == policy


@pytest.mark.parametrize("cache", [None, 1000])
def test_planned_peers_without_a_cache_are_one_warning(cache: int | None) -> None:
    plan = Plan(peers="127.0.0.1:7001,127.0.0.1:7002")
    nothing_asked = dict.fromkeys(("cache_dir", "group", "group_bytes", "group_patience_s"))
    asked = Options(
        seed=None,
        num_workers=0,
        prefetch_factor=None,
        workers="processes",
        cache=cache,
        cache_policy="keep-first",
        **nothing_asked,  # type: ignore[arg-type]
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        peers = asked._planned(plan, Named()).peers
    assert peers == (None if cache is None else plan.peers)
    assert ["the plan names peers, but no cache" in str(one.message) for one in said] == [True] * (cache is None)
