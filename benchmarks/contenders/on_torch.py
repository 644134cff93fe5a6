"""Loaders with the arguments of torch's: torch's own, torchdata's and ours. They read plain files."""

from pathlib import Path
from typing import Any

from contenders.payloads import Samples, Workload

WORKERS = 2


def kind_of(name: str) -> Any:
    """The class of that name."""
    if name == "stoker":
        import stoker

        return stoker.DataLoader
    if name == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader
    from torch.utils.data import DataLoader

    return DataLoader


class Loader:
    """One of these, over files."""

    def __init__(self, name: str, workload: Workload, plain: Path) -> None:
        self.loader = kind_of(name)(Samples(workload, plain), batch_size=workload.batch, shuffle=True, num_workers=WORKERS)
        if hasattr(self.loader, "state_dict"):
            self.state, self.resume = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Any:
        return iter(self.loader)

    def close(self) -> None:
        """End the workers of an epoch that was left."""
        if hasattr(self.loader, "close"):
            self.loader.close()
