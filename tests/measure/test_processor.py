"""What processes do with the cores, and what they would do."""

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import pytest

from stoker.measure.processor import cpu_s, wanted_s


def _compute(core: int, stop: Event) -> None:
    os.sched_setaffinity(0, {core})
    while not stop.is_set():
        sum(range(1000))


@pytest.fixture
def two_on_one_core() -> Iterator[list[int]]:
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    core = min(os.sched_getaffinity(0))
    processes = [context.Process(target=_compute, args=(core, stop)) for _ in range(2)]
    for process in processes:
        process.start()
    yield [process.pid for process in processes if process.pid]
    stop.set()
    for process in processes:
        process.join()


def test_waiting_for_a_core_is_wanting_one(two_on_one_core: list[int]) -> None:
    while cpu_s(two_on_one_core) < 0.5:
        pass
    assert wanted_s(two_on_one_core) > 1.5 * cpu_s(two_on_one_core)


def test_a_process_that_is_gone() -> None:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    assert process.pid
    assert wanted_s([process.pid]) == 0
