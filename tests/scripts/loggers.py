"""The blocks of "In your own logs" with the real loggers, offline: loggers.py BLOCKS FOLDER. Prints what they have kept."""

import json
import sys
from pathlib import Path

import mlflow
import torch
import wandb

import stoker

blocks, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
(to_wandb,) = [block for block in blocks if "run.log" in block]
(to_mlflow,) = [block for block in blocks if "mlflow" in block]
with stoker.DataLoader(torch.utils.data.TensorDataset(torch.arange(200)), batch_size=2) as loader:
    run = wandb.init(mode="offline", project="stoker", dir=folder)
    exec(to_wandb, {"loader": loader, "run": run})
    kept = {"wandb": dict(run.summary)}
    run.finish()
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    with mlflow.start_run() as active:
        exec(to_mlflow, {"loader": loader, "mlflow": mlflow})
    kept["mlflow"] = mlflow.get_run(active.info.run_id).data.metrics
print(json.dumps({logger: {name: value for name, value in values.items() if name.startswith("loader/")}
                  for logger, values in kept.items()}))  # fmt: skip
