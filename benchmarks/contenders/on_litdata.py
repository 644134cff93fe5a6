"""LitData: chunks that its writer makes, streamed from a local folder."""

from pathlib import Path
from typing import Any

import litdata

from contenders.payloads import Payloads, Workload

WORKERS = 2


class _Chunks(litdata.StreamingDataset):
    workload: Workload

    def __getitem__(self, place: Any) -> tuple[Any, int]:
        sample = super().__getitem__(place)
        return self.workload.prepare(sample["payload"]), sample["number"]


def write(workload: Workload, folder: Path, plain: Path) -> None:
    """Its chunks, of 64 MB at most, as its guide has them."""
    payloads = Payloads(workload, plain)
    litdata.optimize(
        fn=_Sample(payloads), inputs=list(range(workload.count)), output_dir=str(folder), chunk_bytes="64MB", num_workers=1
    )


class _Sample:
    def __init__(self, payloads: Payloads) -> None:
        self.payloads = payloads

    def __call__(self, number: int) -> dict[str, Any]:
        return {"payload": self.payloads.read(number), "number": number}


class Loader:
    """Its own loader."""

    def __init__(self, name: str, workload: Workload, folder: Path) -> None:
        chunks = _Chunks(str(folder), shuffle=True, drop_last=False)
        chunks.workload = workload
        self.loader = litdata.StreamingDataLoader(chunks, batch_size=workload.batch, num_workers=WORKERS)
        self.state, self.resume = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Any:
        return iter(self.loader)

    def close(self) -> None:
        """Nothing is kept."""
