"""Profiles for the tests of the page: a usual one, and odd ones."""

import math
import random
from dataclasses import replace
from typing import Any

from tests.test_profile import SMALLEST

from stoker.decide.model import POLICIES, Share
from stoker.profile import Advice, Confidence, DatasetSize, Host, OnDevice, Profile, Rates, Speed, Stalls

OUTSIDE = "</script><img src=x onerror='hacked=1'>\u202e{{ 7 * 7 }}\n&amp; --" + "long" * 60 + "\ud800"
USUAL = replace(
    Profile.of_document(SMALLEST),
    script="train.py --epochs 3 --learning-rate 0.001",
    rates=Rates(
        3748.0, 815.0, 616.0, 105_000.0, {1: 376.0, 2: 815.0}, {2: 799.0}, {1: 310.0, 2: 616.0, 4: 1211.0},
        workers=2, cores=2.0, batch=16, prep_busy=0.4, loop_cores=0.3,
    ),
    speed=Speed(3748.0, 854.0, 361.0),
    stalls=Stalls(0.33, 0.57),
    notes=("the size of the dataset is an estimate.",),
)  # fmt: skip
AFTER = replace(USUAL, workers=4, rates=replace(USUAL.rates, workers=4, prep=1500.0, storage=1211.0), batch_size=32)
ON_DEVICE = replace(USUAL, on_device=(OnDevice("tail", 1040.0, 3600.0, 1050.0), OnDevice("device", 9000.0, 3300.0, 3250.0)))
_HUGE = Rates(
    3.7e203, 8.1e202, 6.1e202, 1e205, {1: 3.7e202, 2: 8.1e202}, {}, {1: 3.1e202, 2: 6.1e202}, workers=2, cores=2.0
)
_UNMEASURED = replace(USUAL.rates, gpu=0.0, workers=10**7)
ODD = {
    "unknown bytes, many ranks": replace(USUAL, dataset=DatasetSize(0, 0, False), world=8, host=Host(0.0, 0, "cuda")),
    "one worker": replace(USUAL, workers=1, rates=replace(USUAL.rates, workers=1, prep=376.0, storage=310.0)),
    "no workers": replace(USUAL, workers=0, rates=replace(USUAL.rates, workers=0)),
    "no stall": replace(
        USUAL, limit="gpu", stalls=Stalls(0.0, 0.0), speed=Speed(300.0, 300.0, 300.0), rates=replace(USUAL.rates, gpu=300.0)
    ),
    "storage not measured": replace(USUAL, rates=replace(USUAL.rates, storage=0.0, cache=0.0, storage_by_readers={})),
    "huge numbers": replace(
        USUAL, rates=_HUGE, speed=Speed(3.7e203, 8e202, 3.6e202), dataset=DatasetSize(10**30, 10**40, True),
        batch_size=10**9, host=Host(1e18, 10**30, "cpu"),
    ),
    "tiny numbers": replace(
        USUAL, rates=Rates(4e-8, 2e-8, 1e-8, 1e-5, {1: 1e-8, 2: 2e-8}, {}, {1: 1e-8, 2: 1e-8}, workers=2, cores=2.0),
        speed=Speed(4e-8, 2e-8, 1e-8),
    ),
    "nothing measured": replace(
        USUAL, rates=_UNMEASURED, workers=10**7, speed=Speed(0.0, 0.0, 0.0), confidence=Confidence()
    ),
    "text from outside": replace(
        USUAL, script=OUTSIDE, stoker=OUTSIDE, host=Host(2.0, 0, OUTSIDE), notes=(OUTSIDE,),
        advice=(Advice(OUTSIDE, 1e300, 1e290, f"--cache {OUTSIDE}"), Advice("a" * 300, 2.0, 0.0, "num_workers=3")),
    ),
}  # fmt: skip


def random_case(draw: random.Random) -> tuple[Rates, Share, Confidence]:
    """Rates and a share from all corners of what a profile may hold."""

    def wide(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    def table(rate: float) -> dict[int, float]:
        counts = draw.sample([0, 1, 2, 3, 4, 8, 16], draw.randint(0, 4))
        return {count: rate * max(count, 0.7) ** draw.uniform(0.4, 1.05) * draw.choice([1, 1, 1, 0]) for count in counts}

    workers, prep = draw.choice([0, 1, 2, 3, 4, 8, 12]), wide(10, 1e4)
    maybe: dict[str, Any] = {
        "cores": draw.choice([0.0, 1.0, 2.0, 2.5, 8.0]),
        "batch": draw.choice([0, 1, 16, 256]),
        "prep_busy": draw.choice([0.0, 1.0, draw.random()]),
        "loop_cores": draw.choice([0.0, draw.uniform(0, 3)]),
        "handover": draw.choice([0.0, wide(10, 1e6)]),
        "spread": draw.choice([0.0, 0.3, draw.uniform(0, 2)]),
        "storage_rested": draw.choice([0.0, wide(10, 1e5)]),
    }
    rates = Rates(
        wide(10, 1e5), prep * max(1, workers) ** 0.8, draw.choice([0.0, wide(10, 1e5)]), draw.choice([0.0, wide(100, 1e6)]),
        table(prep), draw.choice([{}, table(prep)]), draw.choice([{}, table(wide(10, 1e4))]), workers=workers, **maybe,
    )  # fmt: skip
    share = Share(
        draw.choice([None, 0, 1, 2, 5, 16]), draw.choice([None, 1.0, 2.0, 7.0, 32.0]),
        draw.choice([0.0, 1.0, draw.random()]), draw.choice(POLICIES), wide(0.2, 8), wide(0.2, 8), draw.random() < 0.3,
    )  # fmt: skip
    return rates, share, Confidence(*(draw.choice([0.0, draw.uniform(0, 0.3), 1.2]) for _ in range(4)))
