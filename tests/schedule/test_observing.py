"""A real script, watched for a moment."""

from pathlib import Path

import pytest

from stoker.errors import CommandError
from stoker.schedule import observing
from stoker.schedule.observing import is_enough, observe
from stoker.schedule.steps import Steps

LOGS = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

weight = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(weight.parameters(), lr=1e-9)
for batch, in DataLoader(TensorDataset(torch.zeros(100_000, 1)), batch_size=1):
    weight(batch).mean().backward()
    optimizer.step()
    print("an iteration, and all that there is to say of it" * 1_000, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def no_longer_than_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_START_S", 60.0)


def test_a_script_that_logs_each_iteration_is_not_held_up(tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text(LOGS)
    assert observe([str(tmp_path / "logs.py")], 1.0, 0.5).rate > 1


def test_what_a_script_said_last_is_told(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys; sys.exit('x' * 100_000 + chr(10) + 'there is no such model')")
    with pytest.raises(CommandError, match=r"it said: there is no such model\)"):
        observe([str(tmp_path / "fails.py")], 1.0, 0.5)


def test_with_which_code_a_script_ended_is_told_if_it_said_nothing(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(CommandError, match="the script ended with code 3, and made too few iterations"):
        observe([str(tmp_path / "fails.py")], 1.0, 0.5)


@pytest.mark.parametrize(
    ("batches", "took_s", "epoch_length", "is_over"),
    [
        (60, 5.9, 50, False),  # not yet so long as was asked for
        (60, 6.0, 50, False),  # the second epoch is over at 10 s
        (100, 10.0, 50, True),
        (103, 10.3, 50, True),  # nobody looks after each batch
        (106, 10.6, 50, False),
        (60, 6.0, 290, False),  # an epoch takes 29 s, and 30 are given to it
        (290, 29.0, 290, True),
        (60, 6.0, 310, True),  # one of 31 s is not waited for
        (310, 31.0, 310, True),
        (60, 6.0, 0, True),  # nobody knows how long its epochs are
        (6, 6.0, 3, False),  # too few to tell a speed from
        (12, 12.0, 3, True),
    ],
)
def test_whole_epochs_are_watched_where_they_are_short_enough(
    batches: int, took_s: float, epoch_length: int, is_over: bool
) -> None:
    """A window that has the start of an epoch or not by chance would be wrong by what a start costs."""
    first, last = Steps(7, 1.0, 0.0, epoch_length), Steps(7 + batches, 1.0 + took_s, 0.0, epoch_length)
    assert is_enough(first, last, 6.0) is is_over
