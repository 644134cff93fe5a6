"""What would Lobster's thread and cache management give on its own cluster, beside the loaders it was compared with?

Simulated (`stoker.decide.simulate`) on the published cluster of 8 hosts with 8 GPUs, for two datasets that are scaled
down to SAMPLES, as are the caches. `ratio` is DALI's time of an epoch against the contender's. `printed` is what the
paper has. Then: how near the assignment of workers is to the best one (brute force over all), for the one in use and
for bisection over all numbers of workers as Algorithm 1 has it; there `ratio` is the worst time of an iteration against
the best.
"""

import itertools
import random
import statistics
import time

import numpy as np

import harness
from stoker.decide import published
from stoker.decide.loading import POOLS, Loading, Needs, SampleTime, alone
from stoker.decide.simulate import look_up, play
from stoker.decide.threads import THRESHOLD, Queue, assign, divide, in_proportion

SAMPLES = 32_768
WARM = 10
INSTANCES = 400
"""For each round; five of them are the default."""
PRINTED = {
    "equal split": "Lobster is 2.0 times as fast (22K); hits .245",
    "DALI": "Lobster is 1.4 times as fast (22K); imbalanced .653 (1K); hits .326",
    "NoPFS": "Lobster is 1.2 times as fast (22K); hits .489",
    "Lobster": "hits .632",
    "Lobster, threads only": "1.3 times DALI, at most 1.4",
    "Lobster, eviction only": "1.15 times DALI",
}


def contenders() -> None:
    """One line for each, and dataset."""
    for dataset in (published.IMAGENET_1K, published.IMAGENET_22K):
        cluster = published.cluster(dataset, SAMPLES)
        policies = {one.policy for one in published.CONTENDERS}
        sources = {policy: look_up(cluster, policy, published.EPOCHS) for policy in sorted(policies)}
        done = {one.name: play(cluster, one, sources[one.policy], WARM) for one in published.CONTENDERS}
        for name, one in done.items():
            harness.report(
                f"{name} on {dataset.name}, simulated",
                ratio=done["DALI"].epoch_s / one.epoch_s,
                epoch_s=one.epoch_s,
                imbalanced=one.imbalanced,
                demand_hits=one.demand_hits,
                service_hits=one.service_hits,
                gpu_busy=one.gpu_busy,
                printed=PRINTED[name],
            )


def random_curve(draw: random.Random, most: int, alone_s: float) -> SampleTime:
    """Workers that add up, that add up to a limit, or that get in each other's way beyond a number."""
    best = most if draw.random() < 0.33 else draw.randint(1, most)
    points = {count: alone_s / count for count in range(1, best + 1)}
    if best < most:
        points[most] = alone_s / best * draw.choice([1.0, draw.uniform(1.0, 2.5)])
    return SampleTime(points)


def random_queues(draw: random.Random, gpus: int, workers: int) -> tuple[list[Queue], float]:
    """Queues of one host, of batches of 32, and a training time."""
    loading = Loading(
        here=alone(random_curve(draw, workers, 1e-4)),
        storage=alone(random_curve(draw, workers, draw.uniform(2e-3, 5e-2))),
        peer=alone(random_curve(draw, workers, draw.uniform(5e-4, 5e-3))),
        pools=draw.choice(POOLS),
    )
    queues = []
    for _ in range(gpus):
        here = draw.randint(0, 32)
        peer = draw.randint(0, 32 - here)
        needs = Needs(here, peer, 32 - here - peer) if draw.random() < 0.9 else Needs()
        behind = draw.choice([0.0, draw.uniform(0, 0.02)])
        queues.append(Queue(loading.seconds(needs, workers), draw.randint(0, 4), behind))
    return queues, draw.uniform(0.01, 0.4)


def slowest(queues: list[Queue], workers: np.ndarray) -> np.ndarray:
    """The time of the slowest queue, for many assignments at once."""
    nothing = [np.full(len(workers), queue.other_s if queue.length else 0.0) for queue in queues]
    times = [q.seconds[workers[:, i]] + q.other_s if q.asks else nothing[i] for i, q in enumerate(queues)]
    worst: np.ndarray = np.max(times, axis=0)
    return worst


def everything(queues: list[Queue], budget: int) -> np.ndarray:
    """All assignments within a budget."""
    counts = np.array(list(itertools.product(range(budget + 1), repeat=len(queues))))
    within: np.ndarray = counts[counts.sum(axis=1) <= budget]
    return within


def as_corrected(queues: list[Queue], train_s: float, budget: int) -> list[int]:
    """Algorithm 1 with its misprints corrected and the budget kept one worker at a time, over all numbers of workers."""
    lengths = [queue.length if queue.asks else 0.0 for queue in queues]
    given = in_proportion(lengths, budget)

    def late(number: int, count: int) -> float:
        queue = queues[number]
        return float(queue.seconds[count] + queue.other_s) - train_s if queue.asks else -train_s

    for number, queue in enumerate(queues):
        if not queue.asks:
            continue
        low, high, count = 1, budget, given[number]
        best = count
        while abs(late(number, count)) >= THRESHOLD * train_s and high - low > 1:
            low, high = (count, high) if late(number, count) > 0 else (low, count)
            count = low + (high - low) // 2
            best = count if abs(late(number, count)) <= abs(late(number, best)) else best
        given[number] = best
    asking = [number for number, queue in enumerate(queues) if queue.asks]
    while sum(given) > budget:
        given[min((n for n in asking if given[n] > 1), key=lambda n: late(n, given[n]))] -= 1
    while asking:
        order = sorted(asking, key=lambda n: late(n, given[n]))
        first, last = order[0], order[-1]
        after = list(given)
        after[last] += 1
        if sum(after) > budget:
            after[first] -= 1
        gap = late(last, given[last]) - late(first, given[first])
        if not all(after[n] for n in asking) or after[last] > budget:
            break
        if max(late(n, after[n]) for n in asking) - min(late(n, after[n]) for n in asking) >= gap:
            break
        given = after
    return given


def assignments(instances: int) -> None:
    """How far from the best, and how long it takes."""
    draw = random.Random(0)
    ours: list[float] = []
    corrected: list[float] = []
    divided: list[float] = []
    late = 0
    while len(ours) < instances:
        gpus = draw.randint(1, 4)
        workers = draw.randint(gpus + 1, 16)
        queues, train_s = random_queues(draw, gpus, workers)
        if not any(queue.asks for queue in queues):
            continue
        tried = everything(queues, workers)
        times = slowest(queues, tried)
        best = max(train_s, float(times.min()))
        found = assign(queues, train_s, workers)
        assert sum(found.workers) <= workers
        late += "late with" in found.reason
        ours.append(found.iteration_s / best)
        plain = np.array([as_corrected(queues, train_s, workers)])
        assert plain.sum() <= workers
        corrected.append(max(train_s, float(slowest(queues, plain)[0])) / best)
        prepare = random_curve(draw, workers, draw.uniform(5e-4, 1e-2))
        used = tried.sum(axis=1)
        shortest = min(
            float(times[used <= workers - count].min()) + 32 * gpus * prepare(count)
            for count in range(1, workers - sum(queue.asks for queue in queues) + 1)
        )
        both = divide(queues, train_s, workers, prepare, 32 * gpus)
        assert sum(both.loading.workers) + both.preparing <= workers
        divided.append(both.loading.iteration_s / max(train_s, shortest))
    for name, ratios in {"assigned": ours, "assigned by plain bisection": corrected, "divided": divided}.items():
        harness.report(
            f"workers {name}: an iteration against the best, {instances} instances of up to 4 GPUs, 16 workers",
            ratio=max(ratios),
            mean=statistics.mean(ratios),
            beyond_2_percent=sum(ratio > 1.02 for ratio in ratios),
            searched=late,
        )


def seconds() -> None:
    """How long a decision takes."""
    draw = random.Random(1)
    taken: dict[str, list[float]] = {"assign": [], "divide": []}
    for _ in range(500):
        queues, train_s = random_queues(draw, 8, 64)
        prepare = random_curve(draw, 64, draw.uniform(5e-4, 1e-2))
        began = time.perf_counter()
        assign(queues, train_s, 64)
        between = time.perf_counter()
        divide(queues, train_s, 64, prepare, 256)
        taken["assign"].append(between - began)
        taken["divide"].append(time.perf_counter() - between)
    for name, times in taken.items():
        median, most = statistics.median(times), max(times)
        harness.report(
            f"ms to {name}, 8 GPUs and 64 workers", ratio=5e-3 / most, median_ms=1e3 * median, most_ms=1e3 * most
        )


def main() -> None:
    instances = INSTANCES * harness.rounds()
    seconds()
    assignments(instances)
    contenders()


if __name__ == "__main__":
    main()
