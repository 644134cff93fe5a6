"""A Lightning module with noise in its dataset: `python lightning_module.py --epochs 2 --workers 2`."""

import argparse
import logging
import warnings

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((16,), float(index % 3)) + torch.randn(16), index % 3


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.model(x), y)
        print(f"epoch {self.current_epoch} batch {index} loss {loss.item():.17g}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=options.workers)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(max_epochs=options.epochs, accelerator="cpu", **quiet).fit(Classifier(), loader)


if __name__ == "__main__":
    main()
