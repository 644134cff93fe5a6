"""Trains in a worker of Ray Train until workers that Ray has placed help. Prints a line of JSON for each epoch at the end.

ray_offloaded.py FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

SCRIPTS = str(Path(__file__).parent)


def work(options: dict[str, Any]) -> None:
    sys.path.insert(0, SCRIPTS)
    import offloaded

    import stoker

    data, plan = offloaded.Noisy(0.004), stoker.Plan(offload_ratio=1.0)
    with (
        stoker.DataLoader(data, 8, seed=3, offload="auto?required", shuffle=True, num_workers=1, plan=plan) as loader,
        open(options["epochs"], "w") as file,
    ):
        for _ in range(200):
            print(json.dumps(offloaded.epoch_of(loader) | {"remote": loader.stats().remote}), file=file)
            if loader.stats().remote:
                break


if __name__ == "__main__":
    epochs = Path(sys.argv[1], "epochs")
    ray.init(address="auto", log_to_driver=False)
    trainer = TorchTrainer(
        work,
        train_loop_config={"epochs": str(epochs)},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1, "node:__internal_head__": 0.1}),
        run_config=RunConfig(storage_path=sys.argv[1]),
    )
    trainer.fit()
    print(epochs.read_text(), end="")
