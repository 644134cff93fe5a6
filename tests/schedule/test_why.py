"""What is said of a job that waits for what is free."""

import pytest
from tests.schedule.clusters import job, servers

from stoker.schedule.engine import Engine
from stoker.schedule.events import Finished, RoundEnded, Submitted
from stoker.schedule.rules import Rules
from stoker.schedule.why import sentence


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (1, "It waits for 1 GPU, which is free: it starts at the next round."),
        (
            2,
            "It waits for 2 GPUs, which are free: it starts at the next round, or as soon as one server has them together.",
        ),
    ],
)
def test_gpus_that_are_free_are_counted_in_words(gpus: int, words: str) -> None:
    engine = Engine(servers(1), Rules("fifo", "tune"))
    for one in (job("first", gpus=8), job("second", gpus=gpus)):
        engine.handle(Submitted(one), 0.0)
    engine.handle(RoundEnded(), 0.0)
    engine.handle(Finished("first"), 10.0)
    assert sentence(engine, "second") == words
