"""The long runs: minutes each. `scripts/soak` runs them."""

import random
import time
from typing import Any

import pytest
from tests.datasets import Augmented, Numbers
from tests.faults.test_endings import left, start
from tests.faults.test_leaks import assert_no_growth

import stoker

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"seed": 1}, {"workers": "threads"}], ids=str)
def test_3000_epochs(options: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(64, (64, 64)), batch_size=8, num_workers=2, shuffle=True, **options)
    kept: list[Any] = [None] * 7

    def epoch() -> None:
        for number, batch in enumerate(loader):
            kept[number % 7] = batch if random.random() < 0.3 else None
            if random.random() < 0.02:
                break

    assert_no_growth(epoch, 3000)
    loader.close()


def test_parents_killed_at_100_moments() -> None:
    for _ in range(100):
        process, workers = start("quiet")
        time.sleep(random.random() * 0.2)
        process.kill()
        assert not left(workers)
        process.communicate()


def test_resumed_2000_times() -> None:
    def loader(workers: int) -> stoker.DataLoader[Any]:
        return stoker.DataLoader(Augmented(60), batch_size=4, shuffle=True, seed=5, num_workers=workers)

    whole = [batch[0].tolist() for batch in loader(0)]
    for _ in range(2000):
        first = loader(random.randrange(3))
        iterator = iter(first)
        seen = [next(iterator)[0].tolist() for _ in range(random.randrange(1, 15))]
        second = loader(random.randrange(3))
        second.load_state_dict(first.state_dict())
        assert seen + [batch[0].tolist() for batch in second] == whole
        del iterator
