"""What the phases of an analysis find, and the ranks that find it together."""

from dataclasses import dataclass, field

import torch
import torch.distributed

from stoker.measure.series import Series


@dataclass
class Measured:
    """Everything that the phases found. What is missing was not measured."""

    batch: int = 0
    gpu: Series = field(default_factory=Series)
    host: Series = field(default_factory=Series)
    loop_cores: float = 0.0
    prep: dict[int, Series] = field(default_factory=dict)
    prep_threads: dict[int, Series] = field(default_factory=dict)
    prep_busy: float = 1.0
    storage: dict[int, Series] = field(default_factory=dict)
    storage_rested: float = 0.0
    cache: float = 0.0
    cached: Series = field(default_factory=Series)
    cold: Series = field(default_factory=Series)
    cached_part: float = 0.0
    samples: int = 0
    bytes: int = 0
    bytes_known: bool = False
    spread: float = 0.3
    device: str = "cpu"
    notes: list[str] = field(default_factory=list)


class Ranks:
    """The ranks of the script, as far as an analysis needs them."""

    def __init__(self) -> None:
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.world = torch.distributed.get_world_size() if together else 1
        self.rank = torch.distributed.get_rank() if together else 0
        self._group = torch.distributed.new_group(backend="gloo") if self.world > 1 else None

    def largest(self, value: float) -> float:
        """The largest of all ranks; all must ask."""
        if self.world == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self._group)
        return float(tensor[0])
