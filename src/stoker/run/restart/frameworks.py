"""Scripts in which a framework has the loop: our callback for it saves and restores, and no epoch is passed.

Lightning and Hugging Face's Trainer know where they are, and can be set there. So when a script calls `fit` or `train`,
`StokerCheckpoint` or `StokerCheckpointCallback` is added, with the directory of `--checkpoint`, and the watcher stops.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.errors import StokerError
from stoker.run.inject import after_import
from stoker.run.restart.guard import Guard
from stoker.run.restart.record import is_of_a_framework
from stoker.run.restart.words import AGAIN, refuse, say, say_refused

_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


class Frameworks:
    """Waits until the script uses Lightning or Hugging Face's Trainer."""

    def __init__(self, directory: Path, options: dict[str, Any], stand_aside: Callable[[], None]) -> None:
        self._directory = directory
        self._guard = Guard(directory) if is_of_a_framework(directory) else None
        self._options = options
        self._stand_aside = stand_aside
        self._runs = 0
        for name in _LIGHTNING:
            after_import(name, lambda module: self._before(module.Trainer, "fit", self._attach_to_lightning))
        after_import("transformers.trainer", self._found_transformers)

    def _found_transformers(self, module: ModuleType) -> None:
        if hasattr(module.Trainer, "_run_epoch"):  # transformers 5
            self._before(module.Trainer, "train", self._attach_to_transformers)

    def _before(self, trainer: Any, name: str, attach: Callable[[Any, Path], None]) -> None:
        run = getattr(trainer, name)

        @functools.wraps(run)
        def attached(owner: Any, *arguments: Any, **named: Any) -> Any:
            self._stand_aside()
            self._runs += 1
            number = self._runs
            attach(owner, self._directory if number == 1 else self._directory / f"run-{number}")
            try:
                return run(owner, *arguments, **named)
            except StokerError as error:
                refuse(str(error))

        setattr(trainer, name, attached)

    def _begun(self, step: int | None) -> None:
        """Called when a trainer begins, with the step that was restored."""
        self.put_back()
        if step is not None:
            say(f"restored step {step}: all that the framework's trainer keeps, the training loader, random generators")

    def put_back(self) -> None:
        """Put back files that the script has begun anew, or removed."""
        guard, self._guard = self._guard, None
        if guard is not None and (failed := guard.put_back()):
            refuse("; ".join([*failed, AGAIN]))

    def _attach_to_lightning(self, trainer: Any, directory: Path) -> None:
        begun = self._begun
        from stoker.errors import ConfigError
        from stoker.torch.lightning import StokerCheckpoint

        class AttachedToLightning(StokerCheckpoint):
            """Says what it has restored, and stands aside where it cannot save."""

            def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
                super().on_fit_start(trainer, pl_module)
                assert self.checkpointer is not None
                begun(self.checkpointer.stats().last_step)

            def on_train_start(self, trainer: Any, pl_module: Any) -> None:
                try:
                    super().on_train_start(trainer, pl_module)
                except ConfigError as error:
                    say_refused(str(error))
                    self.teardown(trainer, pl_module, "fit")

        if not any(isinstance(callback, StokerCheckpoint) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, AttachedToLightning(directory, **self._options))

    def _attach_to_transformers(self, trainer: Any, directory: Path) -> None:
        begun = self._begun
        from stoker.torch.transformers import StokerCheckpointCallback

        class AttachedToTransformers(StokerCheckpointCallback):
            """Says what it has restored."""

            def on_train_begin(self, *arguments: Any, **named: Any) -> None:
                super().on_train_begin(*arguments, **named)
                assert self.checkpointer is not None
                begun(self.checkpointer.stats().last_step)

        if not any(isinstance(callback, StokerCheckpointCallback) for callback in trainer.callback_handler.callbacks):
            trainer.add_callback(AttachedToTransformers(directory, trainer, **self._options))
