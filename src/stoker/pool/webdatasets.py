"""WebDataset's streams: they have no state, but some of their stages count epochs, and shuffle each in another order."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class CountedEpochs(IterableDataset[Any]):
    """A stream whose state is the epochs that its stages have counted. The rest is passed by count."""

    def __init__(self, stream: Any, stages: list[Any]) -> None:
        self._stream = stream
        self._stages = stages

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)

    def state_dict(self) -> dict[str, list[int]]:
        """What was counted."""
        return {"epochs": [stage.epoch for stage in self._stages]}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Count on from there. The next `iter()` is the next epoch."""
        for stage, epoch in zip(self._stages, state["epochs"], strict=True):
            stage.epoch = epoch


def counted(dataset: Any) -> CountedEpochs | None:
    """A stream of WebDataset's with what its stages count; None for all others."""
    if not any(kind.__module__.startswith("webdataset.") for kind in type(dataset).__mro__):
        return None
    stages = [stage for stage in getattr(dataset, "pipeline", ()) if type(getattr(stage, "epoch", None)) is int]
    return CountedEpochs(dataset, stages) if stages else None
