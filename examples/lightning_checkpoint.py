"""A training with Lightning that may be killed at any moment: start it again, and it goes on.

python examples/lightning_checkpoint.py --directory checkpoints --steps 1000 --losses losses.txt
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import TensorDataset

import stoker
from stoker.torch.lightning import StokerCheckpoint


class Regression(pl.LightningModule):
    def __init__(self, losses: Path) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(64, 1),
        )
        self.losses = losses.open("a", buffering=1)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layers(x), y)
        print(self.global_step + 1, loss.item(), file=self.losses)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
                "monitor": "val_loss",
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="checkpoints")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--losses", type=Path, default=Path("losses.txt"))
    parser.add_argument("--every", type=int, help="steps between checkpoints; otherwise as many as cost 5 percent")
    options = parser.parse_args()

    pl.seed_everything(0)
    x = torch.randn(320, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        callbacks=[StokerCheckpoint(options.directory, every=options.every)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Regression(options.losses)
    trainer.fit(
        model,
        stoker.DataLoader(data, batch_size=32, shuffle=True, seed=7),
        torch.utils.data.DataLoader(data, batch_size=64),
    )
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main()
