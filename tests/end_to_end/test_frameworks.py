"""Frameworks that take loaders apart and make them again."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import accelerate
import lightning
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from tests.datasets import Augmented, Numbers
from tests.torch.test_differential import assert_same

import stoker
from stoker.torch.accelerate import prepare


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


def prepared(seed: int | None, stateful: bool, shuffle: bool = True) -> tuple[accelerate.Accelerator, Any]:
    config = DataLoaderConfiguration(use_stateful_dataloader=stateful)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    loader = stoker.DataLoader(Augmented(24), batch_size=4, num_workers=1, shuffle=shuffle, seed=seed)
    return accelerator, prepare(accelerator, loader)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("seen", [0, 1, 5, 6])
def test_accelerate_resumes_in_the_middle_of_an_epoch(stateful: bool, seen: int) -> None:
    _, loader = prepared(3, stateful)
    whole = [batch for _ in range(2) for batch in loader]
    _, begun = prepared(3, stateful)
    state = begun.state_dict()
    for _, _batch in zip(range(seen), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    _, rest = prepared(3, stateful)
    rest.load_state_dict(state)
    assert isinstance(rest.base_dataloader, stoker.DataLoader)
    assert_same([batch for _ in range(2) for batch in rest][: 12 - seen], whole[seen:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [3, None])
def test_accelerates_own_checkpoints_hold_where_the_loader_is(tmp_path: Path, seed: int | None) -> None:
    torch.manual_seed(1)
    accelerator, begun = prepared(seed, True)
    order = []
    for number, (*_, labels) in enumerate(begun):
        order.append(labels.tolist())
        if number == 2:
            accelerator.save_state(str(tmp_path))
    torch.manual_seed(2)
    accelerator, rest = prepared(seed, True)
    accelerator.load_state(str(tmp_path))
    assert [labels.tolist() for *_, labels in rest] == order[3:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seedable", [False, True])
def test_accelerates_shards_draw_apart_and_resume(seedable: bool) -> None:
    class OfTwo:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def prepare_data_loader(self, loader: Any) -> Any:
            torch.manual_seed(4)  # as Accelerate makes all processes agree on the order
            return prepare_data_loader(
                loader, num_processes=2, process_index=self.rank, use_seedable_sampler=seedable, rng_types=[]
            )

    def shard(rank: int) -> Any:
        return prepare(OfTwo(rank), stoker.DataLoader(Augmented(24), batch_size=4, num_workers=1, shuffle=True, seed=3))

    loaders = [shard(rank) for rank in (0, 1)]
    epochs = [[batch for _ in range(2) for batch in loader] for loader in loaders]
    for epoch in (slice(0, 3), slice(3, 6)):
        labels = [label for batches in epochs for *_, batch in batches[epoch] for label in batch.tolist()]
        assert sorted(labels) == list(range(24))
    drawn = [{tuple(row.tolist()) for values, *_ in batches for row in values} for batches in epochs]
    assert not drawn[0] & drawn[1]
    begun = shard(1)
    list(begun)
    next(iter(begun))
    rest = shard(1)
    rest.load_state_dict(begun.state_dict())
    assert_same(list(rest), epochs[1][4:])


def ranks(out: Path, *words: Any) -> list[Any]:
    """What two processes under `torchrun` were given, by their ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = Path(__file__).parents[1] / "scripts" / "accelerate_ranks.py"
    done = subprocess.run([*launcher, script, out, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank} of 2").read_text()) for rank in range(2)]


def test_two_ranks_under_accelerate_go_on_where_they_were(tmp_path: Path) -> None:
    whole = ranks(tmp_path)
    for epoch in (slice(0, 5), slice(5, 10)):
        labels = [label for batches in whole for batch, *_ in batches[epoch] for label in batch]
        assert sorted(labels) == list(range(40))
    begun = ranks(tmp_path, tmp_path / "state", 3)
    assert begun == [batches[:3] for batches in whole]
    rest = ranks(tmp_path, tmp_path / "state")
    assert [batches[:7] for batches in rest] == [batches[3:] for batches in whole]


@pytest.mark.filterwarnings("ignore")
def test_accelerate_by_itself_takes_torchdatas_loader_which_resumes_what_is_not_shuffled() -> None:
    def by_itself() -> Any:
        config = DataLoaderConfiguration(use_stateful_dataloader=True)
        loader = stoker.DataLoader(Numbers(24), batch_size=4, num_workers=1, seed=3)
        return accelerate.Accelerator(cpu=True, dataloader_config=config).prepare(loader)

    begun = by_itself()
    assert not isinstance(begun.base_dataloader, stoker.DataLoader)
    order = []
    for _, labels in begun:
        order.append(labels.tolist())
        if len(order) == 2:
            state = begun.state_dict()
    rest = by_itself()
    rest.load_state_dict(state)
    assert [labels.tolist() for _, labels in rest] == order[2:]


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
