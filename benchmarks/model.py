"""How well does the cost model predict a loader? Random loaders, simulated event by event, and what plain min() says.

The model is told what an analysis would measure: every stage alone. Balanced cases are drawn on purpose: there min() of
the rates errs most. `ratio` is how many times larger the median error of min() is.
"""

import argparse
import math
import random
import statistics
from dataclasses import dataclass

import harness
from pipeline import Pipeline
from stoker.decide.model import Share, predict

SAMPLES = 12_000
KINDS = {
    "bandwidth": "a store that is used up by one reader",
    "latency": "a store that makes each reader wait",
    "both": "a store that does both",
    "quota": "a store with a quota",
    "peers": "a store that is used up by one reader, and other hosts behind a link that is",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A simulated loader, and the three answers."""

    pipeline: Pipeline
    truth: float
    model: float
    minimum: float

    @property
    def error(self) -> float:
        return abs(self.model / self.truth - 1)

    @property
    def error_of_minimum(self) -> float:
        return abs(self.minimum / self.truth - 1)


def draw(rng: random.Random, kind: str, batches: tuple[int, ...] = (4, 16, 64), *, on_core: bool = False) -> Pipeline:
    """A loader whose reading, preparing and loop are within a few times of each other."""
    workers = rng.choice([1, 2, 2, 3, 4, 6, 8, 12])
    cores = rng.choice([64, max(1, workers // 2), workers])
    prep_s = 1e-3 * rng.uniform(0.3, 3)
    transfer_s = prep_s / workers * math.exp(rng.uniform(-1.2, 1.2)) if kind != "latency" else 0.0
    latency_s = prep_s * math.exp(rng.uniform(-1.5, 1.5)) if kind in ("latency", "both") else 0.0
    quota_s, transfer_s = (transfer_s, transfer_s / 10) if kind == "quota" else (0.0, transfer_s)
    cached = rng.choice([0.0, 0.0, 0.25, 0.5, 0.75, 1.0])
    misses = 1 - cached
    peers, link_s = 0.0, 0.0
    if kind == "peers":
        peers, link_s = misses * rng.choice([0.25, 0.5, 0.75, 1.0]), prep_s / workers * math.exp(rng.uniform(-1.2, 1.2))
    rate = min(workers / (prep_s + misses * (latency_s + transfer_s)), cores / prep_s)
    used_up_s = max((misses - peers) * max(transfer_s, quota_s), peers * link_s)
    rate = min(rate, 1 / used_up_s) if used_up_s else rate
    return Pipeline(
        workers=workers,
        cores=cores,
        batch=rng.choice(batches),
        prefetch=rng.choice([2, 2, 4]),
        compute_s=rng.choice([0.0, math.exp(rng.uniform(-0.7, 0.7)) / rate]),
        prep_s=prep_s,
        latency_s=latency_s,
        transfer_s=transfer_s,
        quota_s=quota_s,
        hit_s=0.02 * prep_s,
        cached=cached,
        peers=peers,
        link_s=link_s,
        spread=rng.choice([0.0, 0.3, 0.6, 1.0]),
        loop_on_core=on_core and cores > 1,
    )


def compare(pipeline: Pipeline, samples: int = SAMPLES) -> Case:
    """Simulate it, and predict it from its stages."""
    batches = max(100, samples // pipeline.batch)
    rates = pipeline.measured(batches // 2)
    misses, network = 1 - pipeline.cached - pipeline.peers, 1 / pipeline.link_s if pipeline.peers else None
    minimum = min(rates.gpu, rates.prep, rates.storage / misses if misses > 1e-9 else math.inf)
    if network is not None:
        minimum = min(minimum, network / pipeline.peers)
    model = predict(rates, Share(cached=pipeline.cached, peers=pipeline.peers, network=network)).rate
    return Case(pipeline, pipeline.rate(batches, 5), model, minimum)


def report(question: str, cases: list[Case]) -> None:
    errors, others = sorted(case.error for case in cases), [case.error_of_minimum for case in cases]
    held_up = [case for case in cases if case.truth * case.pipeline.compute_s < 0.97]
    harness.report(
        question,
        ratio=statistics.median(others) / statistics.median(errors),
        cases=len(cases),
        median=statistics.median(errors),
        of_20_the_19th=errors[int(0.95 * len(errors))],
        worst=errors[-1],
        median_where_data_is_the_limit=statistics.median(case.error for case in held_up),
        median_of_min=statistics.median(others),
        worst_of_min=max(others),
        median_of_min_where_data_is_the_limit=statistics.median(case.error_of_minimum for case in held_up),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="20 loaders of each kind for each (default: 5)")
    count = 20 * parser.parse_args().rounds
    for number, (kind, words) in enumerate(KINDS.items()):
        rng = random.Random(number)
        report(f"error of the cost model, {words}", [compare(draw(rng, kind)) for _ in range(count)])
    rng = random.Random(10)
    report(
        "error of the cost model, a loop that computes on the workers' cores",
        [compare(draw(rng, rng.choice(list(KINDS)), on_core=True)) for _ in range(count)],
    )
    rng = random.Random(11)
    report(
        "error of the cost model, batches of one", [compare(draw(rng, rng.choice(list(KINDS)), (1,))) for _ in range(count)]
    )


if __name__ == "__main__":
    main()
