"""Callbacks for Lightning: checkpoints from which `trainer.fit` goes on, and what the run waits for in its log.

    trainer = Trainer(callbacks=[StokerCheckpoint("checkpoints"), StokerStats()])
    trainer.fit(module, stoker.DataLoader(dataset, shuffle=True, seed=7))

A snapshot is taken between two batches: hooks, validation and schedulers of the first are done, and the second has not been
fetched. Callbacks have no hook at that moment (`on_train_batch_end`, for one, comes before validation), so the loop's own
`_on_before_fetch` is used.
"""

import os
import warnings
from collections.abc import Callable
from typing import Any

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl  # type: ignore[no-redef,unused-ignore]

from stoker.checkpoint.checkpointer import Checkpointer
from stoker.errors import ConfigError
from stoker.meter import Scalars
from stoker.torch.loader import DataLoader


class StokerCheckpoint(pl.Callback):
    """Saves a run by itself and restores it exactly, in the middle of an epoch too, at the next `fit` with the directory.

    Arguments are those of `stoker.Checkpointer`; `every` counts optimizer steps. Saved are the module, optimizers,
    schedulers, precision plugin, callbacks and loops, and loaders that have `state_dict()`. If there is a checkpoint,
    `ckpt_path` is not used. What was logged of an epoch before an interruption is not in that epoch's means.

    During training SIGTERM and SIGUSR1 save and end the run with exit code 75. Lightning would not save, and exit with 0.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, overhead: float = 0.05, keep: int = 2, every: int | None = None
    ) -> None:
        self.checkpointer: Checkpointer | None = None
        self._directory = directory
        self._options: dict[str, Any] = {"overhead": overhead, "keep": keep, "every": every}
        self._loops: _Loops | None = None
        self._has_updated = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore, when the optimizers are there and no loader has been asked for a batch."""
        parts: dict[str, Any] = {"model": pl_module, "precision": trainer.precision_plugin}
        parts |= {f"optimizer_{number}": optimizer for number, optimizer in enumerate(trainer.optimizers)}
        parts |= {f"scheduler_{number}": config.scheduler for number, config in enumerate(trainer.lr_scheduler_configs)}
        parts |= {"callbacks": _Callbacks(trainer), "loops": _Loops(trainer.fit_loop)}
        self._loops, self._has_updated = parts["loops"], False
        self.checkpointer = Checkpointer(self._directory, **self._options, **parts)
        if self.checkpointer.restore() is not None:
            trainer._checkpoint_connector._loaded_checkpoint = {}  # of ckpt_path, which would be loaded after this

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace the loop's `_on_before_fetch`, and take the signals."""
        fetcher: Any = trainer.fit_loop._data_fetcher
        if not hasattr(fetcher, "prefetch_batches") or fetcher.length is None:
            raise ConfigError(
                "Lightning reads ahead if a loader has no length or training_step takes an iterator, and nobody can tell "
                "what the loop has seen: use a dataset with a length, and a training_step that takes a batch"
            )
        for loader in fetcher.combined_loader.flattened:
            if not hasattr(loader, "state_dict"):
                warnings.warn(
                    f"a {type(loader).__name__} cannot say where it is, so a resumed epoch would not go on with the "
                    "samples that are left: use stoker.DataLoader",
                    stacklevel=2,
                )
        # Put back to what they were before: the checkpointer's, which has heard of a signal in between.
        trainer._signal_connector.teardown()
        trainer._signal_connector.received_sigterm = False
        loop = trainer.fit_loop.epoch_loop
        if self._loops is not None and self._loops.restored is not None:
            loop.restarting = False  # it would look for a validation to finish
        loop._on_before_fetch = self._between_batches(loop._on_before_fetch)  # type: ignore[method-assign]

    def _between_batches(self, fetches: Callable[[], None]) -> Callable[[], None]:
        def before_fetch() -> None:
            assert self._loops is not None and self.checkpointer is not None
            self._loops.go_on()
            if self._has_updated:
                self._has_updated = False
                self.checkpointer.step()
            fetches()

        return before_fetch

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note whether parameters were updated: gradients that are being accumulated are not saved."""
        self._has_updated = not trainer.fit_loop._should_accumulate()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell loaders of ours that the epoch is over: Lightning does not ask for the batch that is not there."""
        assert trainer.fit_loop._combined_loader is not None
        for loader in trainer.fit_loop._combined_loader.flattened:
            if isinstance(loader, DataLoader):
                loader._progress.end()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Close the checkpointer and undo what was replaced."""
        trainer.fit_loop.epoch_loop.__dict__.pop("_on_before_fetch", None)
        if self.checkpointer is not None:
            self.checkpointer.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Do what `teardown` does: Lightning does not call it after an exception."""
        trainer._signal_connector.teardown()
        self.teardown(trainer, pl_module, "fit")


class StokerStats(pl.Callback):
    """Logs how much of its time the training loop waits for data, and how many samples it gets per second.

    It logs every `log_every_n_steps` of the trainer, under `loader/waiting_pct` and `loader/samples_per_s`. Each value is
    for the time since the last one; every rank logs its own. `prog_bar=True` shows both in the progress bar.
    """

    def __init__(self, prefix: str = "loader/", *, prog_bar: bool = False) -> None:
        self._prefix = prefix
        self._prog_bar = prog_bar
        self._scalars: Scalars | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the loaders, and begin to count."""
        assert trainer.fit_loop._combined_loader is not None
        loaders = [loader for loader in trainer.fit_loop._combined_loader.flattened if isinstance(loader, DataLoader)]
        self._scalars = Scalars([loader._meter for loader in loaders]) if loaders else None
        if self._scalars is None:
            warnings.warn("no loader of this run is a stoker.DataLoader, so nothing is known of its waiting", stacklevel=2)
        else:
            self._scalars.take()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log every `log_every_n_steps` steps."""
        if self._scalars is not None and trainer._logger_connector.should_update_logs:
            values = self._scalars.take(self._prefix)
            wanted = {f"{self._prefix}{name}" for name in ("waiting_pct", "samples_per_s")}
            bar = {name: value for name, value in values.items() if name in wanted}
            rest = {name: value for name, value in values.items() if name not in wanted}
            pl_module.log_dict(bar, prog_bar=self._prog_bar, batch_size=1)
            pl_module.log_dict(rest, batch_size=1)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let go of the loaders."""
        self._scalars = None


class _Loops:
    """Lightning's progress, with the states of its loaders."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.loop.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loop.load_state_dict(state)  # loaders get theirs when Lightning has made them
        self.restored = {**state, "state_dict": {}}

    def go_on(self) -> None:
        """Before the first fetch, set Lightning's counters again: it assumes that they were saved at another moment."""
        if self.restored is None:
            return
        self.loop.load_state_dict(self.restored)
        self.restored = None
        for loop in (self.loop, self.loop.epoch_loop, self.loop.epoch_loop.val_loop):
            loop.on_iteration_done()
        self.loop._data_fetcher.fetched = self.loop.epoch_loop.batch_progress.current.ready


class _Callbacks:
    """The states of callbacks, and the metrics that callbacks and schedulers watch."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        states = {callback.state_key: callback.state_dict() for callback in self.trainer.callbacks}
        metrics = dict(self.trainer._logger_connector._callback_metrics)
        return {"states": {key: state for key, state in states.items() if state}, "metrics": metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for callback in self.trainer.callbacks:
            if callback.state_key in state["states"]:
                callback.load_state_dict(state["states"][callback.state_key])
        self.trainer._logger_connector._callback_metrics.update(state["metrics"])
