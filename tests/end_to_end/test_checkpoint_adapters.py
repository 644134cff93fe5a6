"""Frameworks' trainings that are killed and started again: every loss and the end are those of an uninterrupted one."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers
from tests.tries import in_some_try
from torch.utils.data import Dataset

import stoker
from stoker.torch.lightning import StokerCheckpoint
from stoker.torch.transformers import StokerCheckpointCallback

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
STEPS = {"lightning": 1000, "transformers": 400}
"""Some seconds of training."""
EVERY = 17


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Run:
    """An example in a process of its own."""

    def __init__(self, example: str, place: Path) -> None:
        self.place, self.last = place, STEPS[example]
        place.mkdir(exist_ok=True)
        words = [sys.executable, str(EXAMPLES / f"{example}_checkpoint.py"), "--directory", "checkpoints"]
        words += ["--steps", str(self.last), "--losses", "losses", "--every", str(EVERY)]
        with (place / "output").open("w") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=output, cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.split("-")[0]) for path in (self.place / "checkpoints").glob("*.json"))

    def steps(self) -> list[tuple[int, str]]:
        path = self.place / "losses"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), loss) for step, loss in map(str.split, lines)]

    def output(self) -> str:
        return (self.place / "output").read_text()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.process.poll() is None, self.output()
            time.sleep(0.002)

    def finish(self) -> str:
        assert self.process.wait(200) == 0, self.output()
        return next(line for line in self.output().splitlines() if line.startswith("weights"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Run]]:
    """One run of each example for all tests, beside those that are interrupted."""
    runs: dict[str, Run] = {}

    def started(example: str) -> Run:
        if example not in runs:
            runs[example] = Run(example, tmp_path_factory.mktemp(example))
        return runs[example]

    yield started
    for run in runs.values():
        run.process.kill()
        run.process.wait()


@pytest.mark.parametrize(
    ("example", "number", "code"),
    [
        ("lightning", signal.SIGKILL, -signal.SIGKILL),
        ("lightning", signal.SIGTERM, 75),
        ("transformers", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_an_example_that_is_interrupted(
    example: str, number: int, code: int, tmp_path: Path, uninterrupted: Callable[[str], Run]
) -> None:
    twin = uninterrupted(example)

    def interrupted(place: Path) -> Run:
        run = Run(example, place)
        run.wait_until(lambda: len(run.checkpoints()) > 1 and run.steps()[-1][0] > 4 * EVERY)
        run.process.send_signal(number)
        assert run.process.wait(100) == code, run.output()
        assert run.steps()[-1][0] < run.last
        return run

    names = iter("abc")
    first = in_some_try(lambda: interrupted(tmp_path / next(names)))  # it may have ended before
    reached = first.steps()[-1][0]
    if code == 75:
        assert first.checkpoints()[-1] == reached  # not even the last step is lost
    again = Run(example, first.place)
    assert again.finish() == twin.finish()
    expected = dict(twin.steps())
    assert list(expected) == list(range(1, first.last + 1))
    assert [(step, loss) for step, loss in again.steps() if loss != expected[step]] == []
    steps = [step for step, _ in again.steps()]
    assert steps[:reached] == list(range(1, reached + 1))
    resumed = steps[reached]
    assert reached - 2 * EVERY <= resumed <= reached + 1
    assert steps[reached:] == list(range(resumed, first.last + 1))


SIGNALS = signal.SIGTERM, signal.SIGUSR1


class Killed(BaseException):
    pass


class Noisy(Dataset[Any]):
    """Numbers with noise, in the form that either framework likes."""

    def __init__(self, count: int, *, named: bool = False) -> None:
        self.count = count
        self.named = named

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        x, y = torch.randn(4) + index, torch.tensor(float(index))
        return {"x": x, "y": y} if self.named else (x, y)


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()


def assert_same_wherever_killed(train: Callable[[Path, int | None, list[Any]], str | None], place: Path) -> None:
    """Kill in each step, and compare all that was seen with an uninterrupted run."""

    def steps(seen: list[Any]) -> int:
        return sum(what == "step" for what, *_ in seen)

    handlers = list(map(signal.getsignal, SIGNALS))
    whole: list[Any] = []
    end = train(place / "whole", None, whole)
    assert steps(whole) > 5
    for kill in range(1, steps(whole) + 1):
        begun: list[Any] = []
        rest: list[Any] = []
        with pytest.raises(Killed):
            train(place / f"{kill}", kill, begun)
        assert train(place / f"{kill}", None, rest) == end, kill
        assert list(map(signal.getsignal, SIGNALS)) == handlers
        assert begun == whole[: len(begun)], kill
        assert rest == whole[len(whole) - len(rest) :], kill
        assert 1 <= steps(begun) + steps(rest) - steps(whole) <= 4, kill  # an accumulation of three, and the one it died in


def assert_same_if_told_to_end(train: Callable[[Path, int | None, list[Any]], str], place: Path) -> None:
    whole: list[Any] = []
    parts: list[Any] = []
    end = train(place / "whole", None, whole)
    with pytest.raises(SystemExit) as ended:
        train(place / "told", -1, parts)
    assert ended.value.code == 75
    assert train(place / "told", None, parts) == end
    assert parts == whole  # nothing was lost, and nothing done twice


class Module(pl.LightningModule):
    def __init__(self, kill: int | None, seen: list[Any], interval: str) -> None:
        super().__init__()
        self.layers = layers()
        self.register_buffer("average", torch.zeros(()))
        self.kill, self.seen, self.interval = kill, seen, interval

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return (self.layers(x).squeeze(1) - y).square().mean() / 1000

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss, loop = self.loss(batch), self.trainer.fit_loop.epoch_loop
        numbers = self.current_epoch, number, self.global_step, loop.total_batch_idx, loop._batches_that_stepped
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.seen.append(("step", *numbers, self.trainer.is_last_batch, batch[1].tolist(), rate, loss.item()))
        if loop.total_batch_idx + 1 == self.kill:
            raise Killed
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.mul_(0.9).add_(self.layers[0].weight.detach().sum())

    def on_train_epoch_start(self) -> None:
        self.seen.append(("begin", self.current_epoch))

    def on_train_epoch_end(self) -> None:
        self.seen.append(("end", self.current_epoch))

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        loss = self.loss(batch) + torch.rand(())  # draws, as augmentations do
        self.log("val_loss", loss)
        if not self.trainer.sanity_checking:
            self.seen.append(("validation", number, loss.item()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        frequency = 3 if self.interval == "step" else 1  # a step after a validation
        scheduler = {"scheduler": plateau, "monitor": "val_loss", "interval": self.interval, "frequency": frequency}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def fit(module: Module, place: Path, samples: int = 11, **options: int) -> str:
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[StokerCheckpoint(place / "checkpoints", every=1), pl.callbacks.EarlyStopping("val_loss", patience=4)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=place,
        **options,
    )
    loader = stoker.DataLoader(Noisy(samples), 3, shuffle=True, seed=3)
    trainer.fit(module, loader, torch.utils.data.DataLoader(Noisy(4), 3))
    return digest(module)


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (11, {"max_epochs": 3}),
        (11, {"max_steps": 9, "val_check_interval": 2}),
        (14, {"max_epochs": 2, "accumulate_grad_batches": 3}),
        (3, {"max_epochs": 6}),
    ],
    ids=["epochs", "steps", "accumulated", "one batch"],
)
def test_lightning_at_each_step(samples: int, options: dict[str, int], tmp_path: Path) -> None:
    def train(place: Path, kill: int | None, seen: list[Any]) -> str:
        pl.seed_everything(1, verbose=False)
        return fit(Module(kill, seen, "step" if "max_steps" in options else "epoch"), place, samples, **options)

    assert_same_wherever_killed(train, tmp_path)


class ToldToEnd(Module):
    """Is told so during its first validation, after which Lightning looks for it sooner than any callback can."""

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        super().validation_step(batch, number)
        if self.kill is not None and not self.trainer.sanity_checking:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")
def test_lightning_is_told_to_end_during_validation(tmp_path: Path) -> None:
    def train(place: Path, kill: int | None, seen: list[Any]) -> str:
        pl.seed_everything(1, verbose=False)
        return fit(ToldToEnd(kill, seen, "epoch"), place, max_epochs=2)

    assert_same_if_told_to_end(train, tmp_path)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted = self.layers(x).squeeze(1)
        noise = 0 if self.training else torch.rand(())
        return {"loss": (predicted - y).square().mean() / 1000 + noise, "logits": predicted}


class Trainer(transformers.Trainer):
    kill: int | None
    seen: list[Any]

    def get_train_dataloader(self) -> Any:
        return stoker.DataLoader(self.train_dataset, self.args.train_batch_size, shuffle=True, seed=3)

    def compute_loss(self, model: Any, inputs: Any, **others: Any) -> Any:
        loss = super().compute_loss(model, inputs, **others)
        if model.training:
            rate = self.optimizer.param_groups[0]["lr"]
            self.seen.append(("step", self.state.global_step, self.state.epoch, inputs["y"].tolist(), rate, loss.item()))
            if sum(what == "step" for what, *_ in self.seen) == self.kill:
                raise Killed
        elif self.kill == -1:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss


class Recorder(transformers.TrainerCallback):
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(("end", state.epoch))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        measured = {name: value for name, value in logs.items() if "runtime" not in name and "per_second" not in name}
        self.seen.append(("log", state.global_step, measured))


def train_with_trainer(place: Path, kill: int | None, seen: list[Any], samples: int = 11, **options: Any) -> str:
    transformers.set_seed(1)
    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(place),
        per_device_train_batch_size=3,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        label_names=["y"],
        remove_unused_columns=False,
        **options,
    )
    data, others = Noisy(samples, named=True), Noisy(4, named=True)
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=others, callbacks=[Recorder(seen)])
    trainer.kill, trainer.seen = kill, seen
    trainer.add_callback(StokerCheckpointCallback(place / "checkpoints", trainer, every=1))
    trainer.train()
    return digest(model)


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (11, {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 2}),
        (14, {"num_train_epochs": 2, "gradient_accumulation_steps": 3}),
        (3, {"num_train_epochs": 6, "eval_strategy": "epoch"}),
    ],
    ids=["steps", "accumulated", "one batch"],
)
def test_transformers_at_each_step(samples: int, options: dict[str, Any], tmp_path: Path) -> None:
    def train(place: Path, kill: int | None, seen: list[Any]) -> str:
        return train_with_trainer(place, kill, seen, samples, **options)

    assert_same_wherever_killed(train, tmp_path)


def test_transformers_is_told_to_end_during_evaluation(tmp_path: Path) -> None:
    def train(place: Path, kill: int | None, seen: list[Any]) -> str:
        return train_with_trainer(place, kill, seen, num_train_epochs=2, eval_strategy="epoch")

    assert_same_if_told_to_end(train, tmp_path)
