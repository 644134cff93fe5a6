"""In the manner of Lightning's examples: a module, a Trainer, its sanity check of the validation before the training."""

import argparse
import logging
import time
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, count, noise):
        self.count, self.noise = count, noise

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((16,), float(index % 3)) + self.noise * torch.randn(16), index % 3


class LitClassifier(L.LightningModule):
    def __init__(self, learning_rate=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        time.sleep(0.004)
        print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item().hex()}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} validation {batch_idx} loss {loss.item().hex()}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--out", default=".")
    parser.add_argument("--max_epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    L.seed_everything(args.seed, verbose=False)
    train_loader = DataLoader(Points(200, 1.0), batch_size=8, shuffle=True, num_workers=2)
    val_loader = DataLoader(Points(48, 0.0), batch_size=8, num_workers=1)
    trainer = L.Trainer(
        max_epochs=args.max_epochs,
        accelerator="cpu",
        default_root_dir=args.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitClassifier(), train_loader, val_loader)


if __name__ == "__main__":
    main()
