"""The ranks of the script under analysis. They agree on what was found."""

import torch
import torch.distributed

from stoker.internals.ranks import rank_and_world, words_apart


class AnalysedRanks:
    """All ranks of the script's process group. Every rank must ask the same questions in the same order."""

    def __init__(self) -> None:
        self.rank, self.world = rank_and_world()
        self._group = words_apart() if self.world > 1 else None

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
