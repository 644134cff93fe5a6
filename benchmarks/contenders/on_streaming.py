"""MosaicML Streaming: MDS shards, read from a local folder."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from contenders.payloads import Payloads, Workload

WORKERS = 2


def _stand_in() -> None:
    """Its datasets of pictures import torchvision, which pulls a torch of its own. Nothing here uses them."""
    names = {"torchvision.datasets": ["VisionDataset", "CIFAR10"], "torchvision.transforms.functional": ["to_tensor"]}
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        module = sys.modules[name] = ModuleType(name)
        for one in names.get(name, []):
            setattr(module, one, type(one, (), {}))


import transformers.feature_extraction_utils  # noqa: E402 - it looks for torchvision itself, and must not find this one
import transformers.tokenization_utils_base  # noqa: E402, F401

_stand_in()
import streaming  # noqa: E402


class _Shards(streaming.StreamingDataset):
    workload: Workload

    def __getitem__(self, place: Any) -> tuple[Any, int]:
        sample = super().__getitem__(place)
        return self.workload.prepare(sample["payload"]), sample["number"]


def write(workload: Workload, folder: Path, plain: Path) -> None:
    """Its shards, of the size that its writer chooses."""
    with streaming.MDSWriter(out=str(folder), columns={"payload": "bytes", "number": "int"}) as writer:
        for number, payload in Payloads(workload, plain):
            writer.write({"payload": payload, "number": number})


class Loader:
    """Its own loader."""

    def __init__(self, name: str, workload: Workload, folder: Path) -> None:
        streaming.base.util.clean_stale_shared_memory()
        shards = _Shards(local=str(folder), batch_size=workload.batch, shuffle=True, num_canonical_nodes=1)
        shards.workload = workload
        self.loader = streaming.StreamingDataLoader(shards, batch_size=workload.batch, num_workers=WORKERS)
        self.state, self.resume = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Any:
        return iter(self.loader)

    def close(self) -> None:
        """Nothing is kept."""
