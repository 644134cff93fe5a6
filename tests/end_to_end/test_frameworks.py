"""Frameworks that take loaders apart and make them again."""

import warnings
from pathlib import Path

import accelerate
import lightning
import pytest
import torch
from tests.datasets import Numbers

import stoker


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
        self.seen: list[int] = []
        self.kind: type | None = None

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        values, labels = batch
        self.kind = type(self.trainer.train_dataloader)
        self.seen += labels.tolist()
        return self.layer(values).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def quiet_trainer(folder: Path, **options: int) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("devices", [1, 2])
def test_lightning(devices: int, tmp_path: Path) -> None:
    """With two devices Lightning replaces the sampler, which makes the loader anew from its attributes."""
    loader = stoker.DataLoader(Numbers(24, (16,)), batch_size=4, num_workers=1, shuffle=True)
    from lightning.pytorch.utilities.data import _update_dataloader

    sampler = torch.utils.data.DistributedSampler(loader.dataset, num_replicas=devices, rank=0)
    again = _update_dataloader(loader, sampler)
    assert type(again) is stoker.DataLoader
    assert len(list(again)) == 6 // devices
    model = Model()
    quiet_trainer(tmp_path).fit(model, loader)
    assert model.kind is stoker.DataLoader
    assert sorted(model.seen) == sorted([*range(24)] * 2)
    loader.close()


def test_accelerate() -> None:
    loader = stoker.DataLoader(Numbers(24, (16,)), batch_size=4, num_workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = accelerate.Accelerator(cpu=True).prepare(loader)
        labels = [label for _, batch in prepared for label in batch.tolist()]
    assert labels == list(range(24))


@pytest.mark.filterwarnings("ignore")
def test_lightning_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    def fit(steps: int, checkpoint: Path | None = None) -> tuple[list[int], lightning.Trainer]:
        model = Model()
        loader = stoker.DataLoader(Numbers(24, (16,)), batch_size=4, num_workers=1, shuffle=True, seed=3)
        trainer = quiet_trainer(tmp_path, max_steps=steps)
        trainer.fit(model, loader, ckpt_path=checkpoint)
        loader.close()
        return model.seen, trainer

    whole, _ = fit(12)
    begun, trainer = fit(4)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    rest, _ = fit(12, tmp_path / "middle.ckpt")
    assert len(rest) >= 8
    assert begun + rest == whole[: len(begun) + len(rest)]
