"""The rank of this process in a distributed run, as `torch.distributed` knows it once the script has set that up.

Before that, and in processes that do not import torch, `host.ranks` tells what the launcher said.
"""

from typing import Any

import torch.distributed


def rank_and_world() -> tuple[int, int]:
    """The number of this process, and how many there are: 0 and 1 as long as there is no process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def words_apart() -> Any:
    """A process group on the CPU for messages of our own, apart from the training's. All must ask for it together."""
    return torch.distributed.new_group(backend="gloo")
