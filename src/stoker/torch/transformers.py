"""Checkpoints for Hugging Face's Trainer: with this callback `trainer.train()` goes on where a killed run was.

    class MyTrainer(transformers.Trainer):
        def get_train_dataloader(self):
            return stoker.DataLoader(self.train_dataset, shuffle=True, seed=7)

    trainer = MyTrainer(model, arguments, train_dataset=dataset)
    trainer.add_callback(StokerCheckpointCallback("checkpoints", trainer))
    trainer.train()

A snapshot is taken when a step begins. The end of the step before would be too early: the trainer logs and evaluates after
it. The batches of a step are fetched before the step begins, so the loader's state is noted before they are fetched.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

from stoker.checkpoint.checkpointer import Checkpointer
from stoker.errors import ConfigError
from stoker.torch.loader import DataLoader

_OF_STATE = (
    *("global_step", "epoch", "num_input_tokens_seen", "total_flos", "log_history"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
)
_OF_TRAINER = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")


class StokerCheckpointCallback(transformers.TrainerCallback):
    """Saves a run by itself and restores it exactly, in the middle of an epoch too, at the next `train` with the directory.

    Arguments are those of `stoker.Checkpointer`, and the trainer, because no event passes it to callbacks. Saved are the
    model, optimizer, scheduler, scaler, progress, logs, callbacks that have a state, and the loader if it has
    `state_dict()`. If there is a checkpoint, `resume_from_checkpoint` is not used. The trainer's means at the end are over
    the whole run. Its speed is not: it divides all steps by the time since the last start.

    During training SIGTERM and SIGUSR1 save and end the run with exit code 75.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        trainer: transformers.Trainer,
        *,
        overhead: float = 0.05,
        keep: int = 2,
        every: int | None = None,
    ) -> None:
        if not hasattr(trainer, "_run_epoch"):
            raise ConfigError(
                f"the trainer has no _run_epoch: transformers 5 is needed, and this is {transformers.__version__}"
            )
        self.checkpointer: Checkpointer | None = None
        self._directory = directory
        self._trainer: Any = trainer
        self._options: dict[str, Any] = {"overhead": overhead, "keep": keep, "every": every}
        self._loader: _Loader | None = None
        self._has_updated = False
        self._resumed: tuple[int, int, int] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore, when the optimizer is there and the loader has not been asked for a batch."""
        self._close()
        loader, scaler = _Loader(kwargs["train_dataloader"]), getattr(kwargs["optimizer"], "scaler", None)
        parts: dict[str, Any] = {}
        if hasattr(loader.base, "state_dict"):
            parts["loader"] = self._loader = loader
        else:
            warnings.warn(
                f"a {type(loader.base).__name__} cannot say where it is, so a resumed epoch would not go on with the "
                "samples that are left: let get_train_dataloader() return a stoker.DataLoader",
                stacklevel=2,
            )
        if scaler is not None:
            parts["scaler"] = scaler
        parts |= {"model": kwargs["model"], "optimizer": kwargs["optimizer"], "scheduler": kwargs["lr_scheduler"]}
        self.checkpointer = Checkpointer(self._directory, **self._options, **parts, progress=_Progress(self._trainer))
        with self._closing():
            done = state.global_step if self.checkpointer.restore() is not None else None
        run_epoch, accumulated = self._trainer._run_epoch, args.gradient_accumulation_steps

        def run_rest(**arguments: Any) -> None:
            with self._closing():
                if done is None:
                    run_epoch(**arguments)
                elif done < state.max_steps:
                    run_epoch(**self._rest(done, accumulated, **arguments))
                else:
                    self._trainer.control.should_training_stop = True

        self._trainer._run_epoch = run_rest

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Close everything if training raises: the trainer has no event for that."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    def _rest(self, done: int, accumulated: int, *, epoch: int, epochs_trained: int, **arguments: Any) -> dict[str, Any]:
        """What is left of an epoch after so many steps. The trainer assumes that every run begins with its first epoch."""
        updates, batches = arguments["num_update_steps_per_epoch"], arguments["steps_in_epoch"]
        number, passed = divmod(done, updates)
        number, passed = number + epoch - epochs_trained, passed if epoch == epochs_trained else 0
        self._resumed = (number, updates, batches) if passed else None
        rest = {"num_update_steps_per_epoch": updates - passed, "steps_in_epoch": batches - passed * accumulated}
        return {**arguments, **rest, "epoch": number, "epochs_trained": 0, "resume_from_checkpoint": None}

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the loader's state, before the batches of the next step are fetched."""
        if self._loader is not None:
            self._loader.begin_epoch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take a checkpoint of the state after the step before, if one is due."""
        if self._has_updated and self.checkpointer is not None:
            self._has_updated = False
            self.checkpointer.step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the loader's state, before the batches of the next step are fetched."""
        self._has_updated = True
        if self._loader is not None:
            self._loader.note()
        if self._resumed is not None:  # the trainer knows only the rest of this epoch
            epoch, updates, batches = self._resumed
            seen = (state.global_step - epoch * updates) * args.gradient_accumulation_steps
            state.epoch = epoch + min(seen, batches) / batches

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the checkpointer."""
        self._close()

    def _close(self) -> None:
        self._trainer.__dict__.pop("_run_epoch", None)
        self._loader, self._resumed, self._has_updated = None, None, False
        if self.checkpointer is not None:
            self.checkpointer.close()


class _Loader:
    """A loader's state, as it was before the trainer fetched the batches of a step."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.base = getattr(loader, "base_dataloader", loader)  # Accelerate's loaders read ahead of what they give
        self.state: dict[str, Any] = {}
        self.is_new = False
        """Whether an epoch has begun, and no step of it was made."""

    def begin_epoch(self) -> None:
        if isinstance(self.base, DataLoader):
            self.base._progress.end()  # the trainer never asks beyond the last batch
        self.state, self.is_new = self.base.state_dict(), True

    def note(self) -> None:
        self.state, self.is_new = self.loader.state_dict(), False

    def state_dict(self) -> dict[str, Any]:
        if self.is_new and (now := self.base.state_dict()).get("begun"):  # its random numbers are drawn
            return {**now, "samples": 0, "batches": 0, "_num_yielded": 0, "_sampler_iter_yielded": 0}
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base.load_state_dict(state)


class _Progress:
    """How far the trainer and its callbacks are, and what it has not yet logged."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def _callbacks(self) -> list[Any]:
        return [callback for callback in self.trainer.callback_handler.callbacks if isinstance(callback, ExportableState)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": {name: getattr(self.trainer.state, name) for name in _OF_STATE},
            "trainer": {name: getattr(self.trainer, name) for name in _OF_TRAINER},
            "callbacks": [callback.state()["attributes"] for callback in self._callbacks()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        values = [(self.trainer.state, state["state"]), (self.trainer, state["trainer"])]
        for owner, named in [*values, *zip(self._callbacks(), state["callbacks"], strict=True)]:
            for name, value in named.items():
                is_tensor = isinstance(value, torch.Tensor)
                setattr(owner, name, value.to(self.trainer.args.device) if is_tensor else value)
