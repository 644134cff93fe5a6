"""What each job should have: cores go where they do most, and none are counted on that nobody can have."""

import random

import pytest
from benchmarks.schedule import instance

from stoker.schedule.aims import aims
from stoker.schedule.job import Job, Server
from stoker.schedule.matrix import Matrix
from stoker.schedule.mechanisms import throughput, tune
from stoker.schedule.opt import allocate, place_first
from stoker.schedule.place import Cluster, Packing
from stoker.schedule.profiles import ModelProfile

HUNGRY = Matrix((1.0, 3.0, 6.0, 12.0), (60.0,), ((0.3,), (1.0,), (1.8,), (2.9,)), (12.0, 60.0))
CURIOUS = Matrix((1.0, 3.0, 4.0), (60.0,), ((0.4,), (1.0,), (1.15,)), (4.0, 60.0))
STEADY = Matrix((1.0, 3.0), (60.0,), ((0.3,), (1.0,)), (3.0, 60.0))
LIGHT = Matrix((1.0,), (20.0,), ((1.0,),), (1.0, 20.0))


def aims_of(jobs: list[Job], servers: int) -> dict[str, tuple[float, float]]:
    cluster = Cluster([Server(f"s{number}", 8, 24.0, 500.0) for number in range(servers)])
    return aims(Packing(cluster), [(job.id, cluster.asks(job)) for job in jobs])


def test_small_jobs_that_gain_most_are_first() -> None:
    """Eight GPUs, of which five need one core each: the small hungry job has all that it wants, the large one its share."""
    jobs = [Job("large", 2, 1, HUNGRY), Job("small", 1, 1, HUNGRY), *(Job(f"l{n}", 1, 1, LIGHT) for n in range(5))]
    found = aims_of(jobs, 1)
    assert (found["small"][0], found["large"][0], found["l0"][0]) == (12.0, 6.0, 1.0)


def test_what_a_job_leaves_that_has_all_gpus_of_a_server_is_not_counted_on() -> None:
    hungry = [Job(f"h{n}", 1, 1, HUNGRY) for n in range(8)]
    assert {aim[0] for aim in aims_of([Job("whole", 8, 1, LIGHT), *hungry], 2).values()} == {3.0}
    four = [Job(f"w{n}", 4, 1, LIGHT) for n in range(2)]  # with halves of servers there are 16 cores more for these
    assert sum(aim[0] for key, aim in aims_of([*four, *hungry], 2).items() if key[0] == "h") == pytest.approx(40, abs=3)


def test_tune_has_nine_tenths_of_what_any_placement_could_have() -> None:
    models = [ModelProfile(str(n), one, 1.0) for n, one in enumerate((HUNGRY, HUNGRY, CURIOUS, STEADY, LIGHT, LIGHT))]
    for seed in range(15):
        cluster, wanting = instance(16, random.Random(seed), models, (1, 2, 4, 8))
        first = Packing(cluster)
        allocation = allocate(first, place_first(first, wanting))
        assert allocation is not None
        bound = allocation.throughput + throughput(first)
        assert 0.9 * bound <= throughput(tune(Packing(cluster), wanting)) <= bound * (1 + 1e-3)
