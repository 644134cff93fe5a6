"""How often does a cache find a sample, by policy? For one reader of everything, and for readers of a changing share.

Simulated with the live cache's ledger and policies; `ratio` is the best policy against LRU. `expected` is the closed form
for one reader, and what was known before for several, in the same order. Every value is the mean over as many seeds as
there are rounds. Last, what it costs to know every next use: there `ratio` is against drawing the order alone.
"""

import math
import statistics
import time
from collections.abc import Callable

import harness
from stoker.cache.replay import Foresight, far_enough, replay, taken
from stoker.order import Drawn
from stoker.plan import CACHE_POLICIES

SAMPLES = 20_000
SHARE = 0.296
KNOWN = {2: "0.30, 0.10, 0.55", 4: "0.29, 0.19, 0.61", 8: "0.298, 0.250, 0.60-0.64"}


def hit_ratios(x: float, readers: int, epochs: int, after: int, seeds: int) -> dict[str, float]:
    """Of each policy, in the epochs after the first ones."""
    return {
        policy: statistics.mean(
            replay(
                Drawn(SAMPLES, seed), capacity=round(x * SAMPLES), policy=policy, readers=readers, epochs=epochs
            ).hit_ratio(after)
            for seed in range(seeds)
        )
        for policy in CACHE_POLICIES
    }


def seconds(prepare: Callable[[int], object], epoch: int) -> float:
    """How long an epoch takes to prepare."""
    began = time.perf_counter()
    prepare(epoch)
    return time.perf_counter() - began


def main() -> None:
    seeds = harness.rounds()
    for x in (0.35, 0.65):
        found = hit_ratios(x, 1, epochs=4, after=1, seeds=seeds)
        lru = x + (1 - x) * math.log(1 - x)
        expected = f"{x}, {lru:.3f}, {x}"
        harness.report(
            f"hits of a cache for {x:.0%}, 1 reader",
            ratio=max(found.values()) / found["lru"],
            hits=found,
            expected=expected,
        )
    for readers, expected in KNOWN.items():
        found = hit_ratios(SHARE, readers, epochs=32, after=16, seeds=seeds)
        question = f"hits of a cache for {SHARE:.1%}, each of {readers} readers"
        harness.report(question, ratio=max(found.values()) / found["lru"], hits=found, expected=expected)
    for readers in (1, 8):
        epoch_ids = taken(Drawn(1_000_000), 0, readers)
        foresight = Foresight(epoch_ids, far_enough(readers))
        first = seconds(foresight.begin, 0)
        later = statistics.median(seconds(foresight.begin, epoch) for epoch in range(1, seeds + 1))
        drawing = statistics.median(seconds(epoch_ids, epoch) for epoch in range(1, seeds + 1))
        question = f"seconds to foresee an epoch of 1,000,000 samples, 1 of {readers} readers"
        harness.report(question, ratio=drawing / later, seconds={"first": first, "later": later, "drawing alone": drawing})


if __name__ == "__main__":
    main()
