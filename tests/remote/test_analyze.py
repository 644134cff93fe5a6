"""What `stoker analyze --offload` measures and says of workers on other hosts."""

from typing import Any

import torch
from tests.remote.test_remote import free_port, loader_of, secret, workers
from torch.utils.data import Dataset

from stoker.decide.offload import Remote
from stoker.report.offload import offload_lines
from stoker.run.elsewhere import remote_rates

__all__ = ["secret"]


class Busy(Dataset[Any]):
    """Samples that take the processor a while."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        total = 0
        for number in range(20_000):
            total += number
        return torch.full((8,), total + index)


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples)


def test_remote_workers_are_measured() -> None:
    port = free_port()
    with workers(port, 1):
        remotes, trouble = remote_rates(loader_of(Busy(), port, collate_fn=stacked), 2.0)
    assert trouble == "" and set(remotes) == {"all", "samples"}  # no attribute names a folder to read here
    remote = remotes["all"]
    assert remote.rate > 0 and remote.workers == 1 and 0 < remote.cost < 0.9


def test_what_would_be_gained_is_said() -> None:
    lines = offload_lines(300, 100, {"all": Remote(100, 0.1, 2)})
    assert "2 workers prepare 100 samples/s; each costs this host 10% of preparing it" in lines[2]
    assert "53% there: 190 samples/s instead of 100 (1.90x); 5 of them would remove the stall" in lines[3]
    assert lines[4] == "  Worth it: 190 samples/s instead of 100; then the remote workers would be the limit"
    lines = offload_lines(300, 100, {"all": Remote(100, 0.1, 2), "samples": Remote(180, 0.1, 2)})
    assert lines[6] == (
        "  Worth it (reading and preparing there, collating here): 262 samples/s instead of 100; "
        "then the remote workers would be the limit"
    )
    assert "Nothing would be sent there" in offload_lines(100, 100, {"all": Remote(100, 0.1)})[-1]
