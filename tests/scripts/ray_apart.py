"""Reads the files of a folder in two workers of Ray Train, as folder_apart.py does. Each writes its words to a file.

ray_apart.py FOLDER CACHE_BYTES RESULTS
"""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch.distributed
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

SCRIPTS = str(Path(__file__).parent)


def work(options: dict[str, Any]) -> None:
    sys.path.insert(0, SCRIPTS)
    from folder_apart import read

    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    with open(Path(options["results"], str(rank)), "w") as said, contextlib.redirect_stdout(said):
        loader = read(SimpleNamespace(**options, fails_once=None), rank, world)
    torch.distributed.barrier()  # the other may still ask this host
    del loader


if __name__ == "__main__":
    folder, cache, results = sys.argv[1:]
    ray.init(address="auto")
    trainer = TorchTrainer(
        work,
        train_loop_config={"folder": folder, "cache": int(cache), "results": results},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=results),
    )
    trainer.fit()
