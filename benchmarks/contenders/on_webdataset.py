"""WebDataset: tar shards, shuffled by shard and by a buffer, batched in the workers."""

from pathlib import Path
from typing import Any

import webdataset
from torch.utils.data import default_collate

from contenders.payloads import Payloads, Workload

WORKERS, SHARDS, BUFFER = 2, 8, 1000


def write(workload: Workload, folder: Path, plain: Path) -> None:
    """Shards of equal size."""
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard:03}.tar")) as tar:
            payloads = Payloads(workload, plain)
            for number in range(shard, workload.count, SHARDS):
                tar.write({"__key__": f"{number:06}", "bin": payloads.read(number)})


class Loader:
    """Its own loader."""

    def __init__(self, name: str, workload: Workload, folder: Path) -> None:
        paths = sorted(str(path) for path in folder.glob("*.tar"))
        dataset = webdataset.WebDataset(paths, shardshuffle=SHARDS, empty_check=False)
        batches = dataset.shuffle(min(BUFFER, workload.count // 4)).map(
            lambda sample: (workload.prepare(sample["bin"]), int(sample["__key__"]))
        )
        batched = batches.batched(workload.batch, collation_fn=default_collate)
        self.loader = webdataset.WebLoader(batched, batch_size=None, num_workers=WORKERS)

    def __iter__(self) -> Any:
        return iter(self.loader)

    def close(self) -> None:
        """Nothing is kept."""
