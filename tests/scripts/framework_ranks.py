"""Trains on two ranks that a framework starts, of which rank 0 has the dearest samples. Prints every loss of rank 0.

framework_ranks.py lightning|spawn [--draws]
torchrun --nproc-per-node 2 framework_ranks.py accelerate [--draws]
"""

import argparse
import os
import random
import time
import warnings
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORLD, BATCH, STEPS, EPOCHS = 2, 4, 16, 2


class Uneven(Dataset[Any]):
    """The dearest samples are those that rank 0 gets: every second one, or every second batch under Accelerate."""

    def __init__(self, chunk: int, draws: bool) -> None:
        self.chunk, self.draws = chunk, draws

    def __len__(self) -> int:
        return STEPS * BATCH * WORLD

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.008 if index // self.chunk % WORLD == 0 else 0.001)
        picture = torch.full((8,), index / len(self))
        if self.draws:
            picture = picture + random.random() + torch.rand(8)
        return picture, index % 2


def say(step: int, loss: torch.Tensor) -> None:
    print(step, repr(loss.item()), flush=True)


def with_lightning(options: Any) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 2)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            pictures, labels = batch
            loss = torch.nn.functional.cross_entropy(self.layer(pictures), labels)
            if self.global_rank == 0:
                say(number, loss)
            return loss

        def train_dataloader(self) -> Any:  # Lightning's own sampler always shuffles
            dataset = Uneven(1, options.draws)
            sampler: Any = DistributedSampler(dataset, WORLD, self.global_rank, shuffle=False)
            return DataLoader(dataset, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet: Any = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    torch.manual_seed(0)
    model = Model()
    quiet |= {"use_distributed_sampler": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=WORLD, strategy="ddp", max_epochs=EPOCHS, **quiet)
    trainer.fit(model)


def train(loader: Any, model: Any, optimizer: Any, backward: Any, says: bool) -> None:
    for _ in range(EPOCHS):
        for number, (pictures, labels) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            if says:
                say(number, loss)


def with_accelerate(options: Any) -> None:
    import accelerate

    torch.manual_seed(0)
    model: Any = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Uneven(BATCH, options.draws), BATCH, num_workers=1)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    train(loader, model, optimizer, accelerator.backward, accelerator.is_main_process)
    accelerator.wait_for_everyone()
    accelerator.end_training()


def spawned(rank: int, options: Any, place: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    dataset = Uneven(1, options.draws)
    sampler: Any = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
    train(loader, model, optimizer, torch.Tensor.backward, rank == 0)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def with_spawn(options: Any) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned, (options, os.path.join(folder, "meeting")), WORLD)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("lightning", "accelerate", "spawn"))
    parser.add_argument("--draws", action="store_true")
    chosen = parser.parse_args()
    {"lightning": with_lightning, "accelerate": with_accelerate, "spawn": with_spawn}[chosen.kind](chosen)
