"""Jobs as they might arrive: at random times, of random lengths, of models in turn by a split of three classes.

Durations are 60 * 10^u seconds with the proportional share, with u uniform in [1.5, 3] for four of five jobs and in [3, 4]
for the others: many short ones and few that take days. The next job is of that class which lacks most of its share so far.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle

import numpy as np

from stoker.errors import ConfigError
from stoker.schedule.job import Job
from stoker.schedule.profiles import ModelProfile

CLASSES = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
_SHORT, _SHORT_PART, _LONG = (1.5, 3.0), 0.8, (3.0, 4.0)
_MIXED = ((1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05))


def check_split(split: Sequence[float]) -> None:
    """Refuse what is not one part for each class."""
    if len(split) != len(CLASSES) or min(split) < 0 or not 0 < sum(split) < math.inf:
        raise ConfigError(f"a split has three parts, for {', '.join(CLASSES)} models, such as 20,70,10")


def models_in_turn(split: Sequence[float], profiles: Mapping[str, ModelProfile]) -> Iterator[ModelProfile]:
    """Models without end, such that each class comes as near as can be to its part of the split."""
    check_split(split)
    shares = [part / sum(split) for part in split]
    turns = []
    for share, models in zip(shares, CLASSES.values(), strict=True):
        missing = [model for model in models if model not in profiles]
        if share and missing:
            raise ConfigError(f"the split needs a profile of {missing[0]}, which is missing")
        turns.append(cycle(models))
    taken = [0] * len(shares)
    for total in count():
        lacking = [
            share - (have / total if total else 0.0) if share else -1.0 for share, have in zip(shares, taken, strict=True)
        ]
        kind = lacking.index(max(lacking))
        taken[kind] += 1
        yield profiles[next(turns[kind])]


def draw(
    jobs_per_hour: float,
    jobs: int,
    split: Sequence[float],
    profiles: Mapping[str, ModelProfile],
    *,
    seed: int,
    gpus: int | str,
) -> list[Job]:
    """So many jobs in the order of their arrival; `gpus` of each is a number, or "mixed"."""
    if not 0 < jobs_per_hour < math.inf or jobs < 1:
        raise ConfigError("arrivals need at least one job, and more than 0 jobs per hour")
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(3600 / jobs_per_hour, jobs)).tolist()
    is_short = random.random(jobs) < _SHORT_PART
    exponents = np.where(is_short, random.uniform(*_SHORT, jobs), random.uniform(*_LONG, jobs))
    durations = (60 * 10**exponents).tolist()
    sizes = random.choice(_MIXED[0], jobs, p=_MIXED[1]).tolist() if gpus == "mixed" else [int(gpus)] * jobs
    models = models_in_turn(split, profiles)
    return [
        as_job(str(number), next(models), arrival_s, duration_s, size)
        for number, (arrival_s, duration_s, size) in enumerate(zip(arrivals, durations, sizes, strict=True))
    ]


def as_job(name: str, profile: ModelProfile, arrival_s: float, duration_s: float, gpus: int, user: str = "") -> Job:
    """A job that takes so long with the proportional share."""
    iterations = max(1, int(duration_s / profile.iteration_s))
    return Job(name, gpus, iterations, profile.matrix, arrival_s, profile.name, user)
