"""The ranks of the script, as far as an analysis needs them: they agree on what was found."""

import torch
import torch.distributed


class Ranks:
    """All ranks of the script's process group. Every rank must ask the same questions in the same order."""

    def __init__(self) -> None:
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.world = torch.distributed.get_world_size() if together else 1
        self.rank = torch.distributed.get_rank() if together else 0
        self._group = torch.distributed.new_group(backend="gloo") if self.world > 1 else None

    def largest(self, value: float) -> float:
        """The largest of all ranks' values."""
        return self.largest_of(value)[0]

    def largest_of(self, *values: float) -> tuple[float, ...]:
        """The largest of each value over all ranks."""
        if self.world == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self._group)
        return tuple(tensor.tolist())
