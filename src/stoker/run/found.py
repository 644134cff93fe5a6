"""Checkpoints of a script that knows nothing of them: what can be found is saved, and found again when it is started again.

Modules, optimizers, schedulers and gradient scalers are numbered as the script makes them, and so are loaders. The training
loader is the one whose batches come before updates. An iteration ends when the next batch is asked for: by then everything
that belongs to it has been done.

A script that is started again makes its objects anew and begins at its first epoch. Epochs that were finished before are
passed through with a single batch each, so that code after the loop finds what it expects; then, at the start of the
epoch that was interrupted, everything is set as it was, and the loader goes on in the middle. So whatever happened before
does not count. What the script keeps in variables of its own (a best accuracy, a running loss) is not known here.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker.checkpoint.checkpointer import Checkpointer
from stoker.checkpoint.files import Damaged, Directory
from stoker.checkpoint.snapshot import state_of
from stoker.errors import CheckpointError
from stoker.torch.loader import DataLoader

_KINDS: dict[str, tuple[type, ...]] = {
    "module": (torch.nn.Module,),
    "optimizer": (torch.optim.Optimizer,),
    "scheduler": (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler),
    "scaler": (torch.amp.GradScaler,),
}
"""The classes whose `__init__` is watched: some of torch's schedulers do not call that of their parent."""


class Numbered:
    """The objects of one kind that the script has made, in order, while they live."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._made: list[weakref.ref[Any]] = []
        for kind in kinds:
            self._watch(kind, "__init__")
        if torch.nn.Module in kinds:
            self._watch(torch.nn.Module, "__setstate__")  # copies are not made by __init__

    def _watch(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)
        made = self._made

        def watched(self: Any, *arguments: Any, **named: Any) -> Any:
            made.append(weakref.ref(self))
            return original(self, *arguments, **named)

        watched.__wrapped__ = original  # type: ignore[attr-defined]
        watched.__name__, watched.__doc__ = name, original.__doc__
        setattr(kind, name, watched)

    def alive(self) -> list[Any]:
        """Those that live, each once."""
        seen: dict[int, Any] = {}
        for reference in self._made:
            found = reference()
            if found is not None:
                seen.setdefault(id(found), found)
        return list(seen.values())


def _roots(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Modules that have a state, and are not part of another."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner and module.state_dict()]


class Position:
    """Where the script is: which loader trains, and how often it was iterated."""

    def __init__(self) -> None:
        self.loader = -1
        self.epochs = 0

    def state_dict(self) -> dict[str, Any]:
        """In plain values."""
        return {"loader": self.loader, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As it was."""
        self.loader, self.epochs = state["loader"], state["epochs"]


class Watcher:
    """Follows a script, saves what it finds, and sets it again."""

    def __init__(self, directory: str, every: int | None, overhead: float | None) -> None:
        self.directory = Path(directory).absolute()
        self._options: dict[str, Any] = {"every": every, "overhead": overhead or 0.05}
        self._numbered = {name: Numbered(kinds) for name, kinds in _KINDS.items()}
        self._loaders: list[weakref.ref[Any]] = []
        self._epochs: dict[int, int] = {}
        self._last: Any = None
        """The loader that gave the last batch."""
        self._updated: Any = None
        """The loader that gave the batch before the last update, until it is asked for another."""
        self._position = Position()
        self._checkpointer: Checkpointer | None = None
        self._found: dict[str, int] = {}
        self._goal: Position | None = None
        self._has_looked = False
        DataLoader.observers.append(lambda loader: self._loaders.append(weakref.ref(loader)))
        DataLoader.wrap_iterator = self._iterate
        register_optimizer_step_post_hook(self._on_update)

    def _look(self) -> Position | None:
        """Where a run before was, by its newest whole checkpoint."""
        directory = Directory(self.directory)
        for name in directory.names():
            try:
                manifest, contents = directory.load(name)
            except Damaged:
                continue
            states, _ = state_of(manifest.document, contents)
            if "position" not in states:
                raise CheckpointError(f"{self.directory} holds checkpoints that are not of `stoker run`: use another one")
            goal = Position()
            goal.load_state_dict(states["position"])
            return goal
        return None

    def _on_update(self, *_: Any) -> None:
        self._updated = self._last

    def _number(self, loader: Any) -> int:
        for number, reference in enumerate(self._loaders):
            if reference() is loader:
                return number
        self._loaders.append(weakref.ref(loader))  # a copy
        return len(self._loaders) - 1

    def _iterate(self, loader: Any, iterate: Callable[[], Any]) -> Any:
        """Stands between a loader and the script's loop."""
        if not self._has_looked:
            self._goal, self._has_looked = self._look(), True
        number = self._number(loader)
        epoch = self._epochs[number] = self._epochs.get(number, 0) + 1
        if self._goal is not None and number == self._goal.loader:
            if epoch < self._goal.epochs:
                return Followed(iterate(), _nothing, _nothing, most=1)
            self._restore(loader, epoch)
        return Followed(
            iterate(), lambda: self._between(loader, number, epoch), lambda: self._gave(loader), length=_length(loader)
        )

    def _gave(self, loader: Any) -> None:
        self._last = loader

    def _between(self, loader: Any, number: int, epoch: int) -> None:
        """The next batch of a loader is asked for."""
        if self._goal is not None:
            return  # what is done before the run has been restored does not count
        if self._updated is loader:
            self._updated = None
            self._position.loader, self._position.epochs = number, epoch
            checkpointer = self._checkpointer or self._open(loader)
            checkpointer.step()

    def _open(self, loader: Any) -> Checkpointer:
        found: dict[str, list[Any]] = {name: numbered.alive() for name, numbered in self._numbered.items()}
        found["module"] = _roots(found["module"])
        parts = {f"{name}{number}": part for name, some in found.items() for number, part in enumerate(some)}
        self._found = {name: len(some) for name, some in found.items() if some}
        loader._replays = True
        self._checkpointer = Checkpointer(self.directory, **self._options, **parts, loader=loader, position=self._position)
        if self._goal is None:
            self._checkpointer.restore()
        return self._checkpointer

    def _restore(self, loader: Any, epoch: int) -> None:
        """The epoch begins that was interrupted."""
        step = self._open(loader).restore()
        self._goal = self._last = self._updated = None
        print(f"stoker: restored step {step}, in epoch {epoch}: {self._words()}", file=sys.stderr, flush=True)

    def _words(self) -> str:
        names = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in self._found.items()]
        missing = [f"no {name}" for name in _KINDS if name not in self._found and name != "scaler"]
        return ", ".join([*names, "the training loader", "random generators", *missing])

    def close(self) -> list[str]:
        """Finish; what to say at the end."""
        if self._checkpointer is None:
            if self._goal is not None:
                goal = f"epoch {self._goal.epochs} of the training loader"
                return [f"stoker: nothing was restored: this run did not come to {goal}"]
            return ["stoker: no checkpoint was taken: no update between two batches of a loader was seen"]
        self._checkpointer.close()
        stats = self._checkpointer.stats()
        saved = f"{stats.checkpoints} checkpoints in {self.directory}, the last of step {stats.last_step}"
        return [f"stoker: {saved}: {self._words()}"]


def _nothing() -> None:
    pass


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


class Followed:
    """A loader's iterator, with a call before and after each batch, and perhaps an end after so many.

    Before the end of an epoch there is no call, if it is known where that is: code after the loop belongs to the iteration.
    """

    def __init__(
        self,
        iterator: Any,
        before: Callable[[], None],
        after: Callable[[], None],
        *,
        most: int | None = None,
        length: int | None = None,
    ) -> None:
        self._iterator = iterator
        self._before, self._after = before, after
        self._left = most
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._left == 0:
            raise StopIteration
        if self._length is None or getattr(self._iterator, "_num_yielded", 0) < self._length:
            self._before()
        batch = next(self._iterator)
        self._after()
        if self._left is not None:
            self._left -= 1
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
