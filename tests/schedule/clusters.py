"""Servers, models and jobs that tests of the scheduler share."""

import random
from pathlib import Path

import pytest

from stoker.schedule.job import Job, Server
from stoker.schedule.matrix import Matrix

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the traces are in ../shared/data, which is not here")

HUNGRY = Matrix(
    (1, 3, 6, 12), (20.0, 62.5, 125.0), ((0.1, 0.3, 0.3), (0.1, 1, 1), (0.1, 1.75, 1.75), (0.1, 2, 2.9)), (12, 125)
)
"""As fast as it is given cores and memory."""
CONTENT = Matrix((1,), (20.0,), ((1,),), (1, 20))
"""As fast with one core as with many."""


def servers(count: int) -> list[Server]:
    return [Server(f"s{number}", 8, 24, 500.0) for number in range(count)]


def job(name: str, matrix: Matrix = CONTENT, gpus: int = 1, iterations: int = 1000, **more: object) -> Job:
    return Job(name, gpus, iterations, matrix, **more)  # type: ignore[arg-type]


def random_matrix(chance: random.Random) -> Matrix:
    """Any matrix in which more is never slower; what it says it wants may be anything."""
    cpus = sorted(chance.sample(range(1, 30), chance.randint(1, 5)))
    memory = sorted(chance.sample(range(10, 400), chance.randint(1, 4)))
    rates: list[list[float]] = []
    for row in range(len(cpus)):
        rates.append([])
        for column in range(len(memory)):
            below = rates[row - 1][column] if row else 0.1
            left = rates[row][column - 1] if column else 0.1
            rates[row].append(max(below, left) + chance.choice((0, 0, chance.random())))
    wanted = chance.uniform(0.5, 30), chance.uniform(5, 400)
    return Matrix(tuple(map(float, cpus)), tuple(map(float, memory)), tuple(map(tuple, rates)), wanted)  # type: ignore[arg-type]
