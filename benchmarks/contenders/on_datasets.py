"""Hugging Face datasets: Arrow files on disk, a transform, and torch's loader over it, as its guide advises."""

from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import DataLoader

from contenders.payloads import Payloads, Workload

WORKERS = 2


def write(workload: Workload, folder: Path, plain: Path) -> None:
    """Its Arrow files."""
    payloads = Payloads(workload, plain)

    def samples() -> Any:
        return ({"payload": payload, "number": number} for number, payload in payloads)

    features = datasets.Features({"payload": datasets.Value("large_binary"), "number": datasets.Value("int64")})
    cached = datasets.Dataset.from_generator(
        samples, features=features, cache_dir=str(folder / "made"), keep_in_memory=False
    )
    cached.save_to_disk(str(folder / "arrow"))


class Loader:
    """Torch's loader over its dataset."""

    def __init__(self, name: str, workload: Workload, folder: Path) -> None:
        def prepared(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {"sample": [workload.prepare(one) for one in rows["payload"]], "number": rows["number"]}

        rows = datasets.load_from_disk(str(folder / "arrow")).with_transform(prepared)
        self.loader = DataLoader(rows, batch_size=workload.batch, shuffle=True, num_workers=WORKERS)

    def __iter__(self) -> Any:
        return ((batch["sample"], batch["number"]) for batch in self.loader)

    def close(self) -> None:
        """Nothing is kept."""
