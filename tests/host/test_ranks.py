"""Which process of a run this is, as launchers say it."""

import pytest

from stoker.host import ranks

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
TASK = {"SLURM_PROCID": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (None, 1, None)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, (0, 1, 0)),
        ({"RANK": "none", "WORLD_SIZE": "", "LOCAL_RANK": "-1"}, (None, 1, None)),
        ({"RANK": "9" * 50}, (None, 1, None)),
        (BATCH_SCRIPT, (None, 1, None)),
        (TASK, (2, 4, None)),
        ({**TASK, "RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, (5, 16, 1)),
        ({**TASK, "RANK": "0"}, (0, 1, None)),
    ],
)
def test_what_was_said_is_understood(
    said: dict[str, str], expected: tuple[int | None, int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.world(), ranks.local_rank()) == expected
