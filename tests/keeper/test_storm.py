"""Ranks, workers and keepers that are killed at random: who is left goes on, and at the end nothing is left."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.keeper.conftest import FILES, SIZE
from tests.keeper.test_life import keepers, nothing_left
from tests.keeper.test_readers import Listed
from tests.latent_folder import Latent
from tests.tries import HANG_S, until

import stoker

TURNS = 8


def _train(folder: Path, cache_dir: Path, epochs: int, told: Any) -> None:
    dataset = Listed(folder)
    dataset.draws = False
    options: dict[str, Any] = {"num_workers": 2, "shuffle": True, "cache": FILES * SIZE // 2, "cache_dir": cache_dir}
    with stoker.DataLoader(dataset, 8, **options) as loader:
        for _ in range(epochs):
            seen = {}
            for batch, numbers in loader:
                seen.update(zip(numbers.tolist(), batch, strict=True))
            for number, row in seen.items():
                expected = Path(dataset.samples[number][0]).read_bytes()[:64]
                assert bytes(row.tolist()) == expected, "wrong bytes"
            told.put(len(seen))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_kills(seed: int, latent: Latent, tmp_path: Path) -> None:
    for group in range(3):
        latent.set(0.003, group)
    draw = random.Random(seed)
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    survivor = context.Process(target=_train, args=(latent.path, tmp_path, 4, told))
    survivor.start()
    for _ in range(TURNS):
        other = context.Process(target=_train, args=(latent.path, tmp_path, 100, context.Queue()))
        other.start()
        time.sleep(draw.random() * 0.4)
        victims = [one.pid for one in psutil.Process(other.pid).children()] + [other.pid]
        victims += [state["pid"] for state in keepers()]
        for pid in draw.sample(victims, k=draw.randint(1, len(victims))):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        other.kill()
        other.join(HANG_S)
    survivor.join(HANG_S)
    assert survivor.exitcode == 0
    assert [told.get(timeout=HANG_S) for _ in range(4)] == [FILES] * 4
    until(lambda: not keepers())
    until(nothing_left)
