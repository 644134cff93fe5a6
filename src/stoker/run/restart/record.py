"""What a checkpoint of an unchanged script holds beside states: where the script was. And whether a run is finished.

This is read before the script is started, too, so nothing here needs torch.
"""

import contextlib
import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stoker.checkpoint.disk import Disk
from stoker.checkpoint.files import Damaged, Directory
from stoker.checkpoint.tree import decode
from stoker.errors import CheckpointError
from stoker.run.restart.loops import Surroundings

PART = "position"
"""The name of this part in a checkpoint."""
_FINISHED = "finished.json"


@dataclass(frozen=True, slots=True)
class LoaderRecord:
    """How far the loaders of one kind are."""

    epochs: int
    """How often one of them was iterated, this time included."""
    first: int | None
    """The first of these times in which its batches came before updates."""
    state: dict[str, Any] | None = None
    """The state to go on from, if it is in an epoch or trains."""
    batches: int = 0
    """How many batches of this epoch updates have used."""
    skipped: int = 0
    """How many batches an iterator skips that goes on from here."""
    ahead: tuple[str, ...] = ()
    """The random generators before each batch that was read ahead, where that was done in the training process."""
    rounds: tuple[tuple[int, str], ...] = ()
    """From what the order was drawn, see `rounds`: batches are counted from the first of them."""
    is_endless: bool = False
    """Whether one epoch follows the other without an end."""
    is_over: bool = False
    """Whether it does not train, and its last epoch is over."""
    generator: str | None = None
    """The generator that only this loader draws from, if it is over and has one."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a script was."""

    command: tuple[str, ...]
    updates: int
    loaders: dict[str, LoaderRecord]
    """By a description of the loader."""
    trains: tuple[str, ...]
    """The loaders whose batches come before updates."""
    around: Surroundings = field(default_factory=Surroundings)
    is_past: bool = False
    """Whether the epoch is over, so that the innermost loop goes on with its next number."""

    def values(self) -> dict[str, Any]:
        """In plain values."""
        return {
            "command": list(self.command),
            "updates": self.updates,
            "loaders": {key: _values(loader) for key, loader in self.loaders.items()},
            "trains": list(self.trains),
            "around": self.around.values(),
            "is_past": self.is_past,
        }

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> "Position":
        """Undo `values`."""
        loaders = loaders_of_values(values["loaders"])
        around = Surroundings.of_values(values["around"])
        return cls(tuple(values["command"]), values["updates"], loaders, tuple(values["trains"]), around, values["is_past"])

    @property
    def is_endless(self) -> bool:
        """Whether an epoch that trains has no end."""
        return any(self.loaders[key].is_endless for key in self.trains)

    @property
    def epoch(self) -> int:
        """The number by which the script knows the epoch to go on with; or, if that is not known, counted from 0."""
        ranges = self.around.ranges
        named = next((loop for loop in ranges if "epoch" in loop.variable.lower()), next(iter(ranges), None))
        if named is not None and named.value is not None:
            return named.value + self.is_past
        return max(self.loaders[key].epochs for key in self.trains) - 1 + self.is_past


def _values(loader: LoaderRecord) -> dict[str, Any]:
    return {each.name: getattr(loader, each.name) for each in fields(loader)}  # not `asdict`, which copies large states


def without_contents(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a position as they are read before torch is there: without what is large in the loaders' states."""
    return {**values, "loaders": {key: _light(one) for key, one in values["loaders"].items()}}


def _light(loader: dict[str, Any]) -> dict[str, Any]:
    others = (loader["state"] or {}).get("streams")
    if others is None:
        return loader
    return {**loader, "state": {**loader["state"], "streams": {**others, "large": [None] * len(others["large"])}}}


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest whole checkpoint of a directory."""

    name: str
    step: int
    position: Position


def newest(directory: Path) -> NewestCheckpoint | None:
    """What a run goes on from; None if there is nothing."""
    nodes = sorted(path for path in directory.glob("node-*") if path.is_dir())
    found = [one for path in nodes or [directory] if (one := _newest_in(path)) is not None]
    return min(found, key=lambda one: one.step, default=None)  # all nodes have that one


def is_of_a_framework(directory: Path) -> bool:
    """Whether the newest checkpoint was written by a framework's callback."""
    names = Directory(directory).names()
    try:
        return bool(names) and PART not in Directory(directory).manifest(names[0]).document["stateful"]
    except CheckpointError:
        return False


def _newest_in(path: Path) -> NewestCheckpoint | None:
    directory = Directory(path)
    for name in directory.names():
        try:
            manifest = directory.verify(name)
        except Damaged:
            continue
        try:
            position = _position_in(manifest.document)
        except CheckpointError as error:
            raise CheckpointError(f"{path / name} {error}") from error
        return None if position is None else NewestCheckpoint(name, manifest.step, position)
    return None


def _position_in(document: Any) -> Position | None:
    """Where a script was, from its checkpoint; None if a framework's callback wrote it, which finds the way itself."""
    parts = document["stateful"]
    try:
        return Position.of_values(decode(parts[PART], _leave_out)) if PART in parts else None
    except (KeyError, TypeError) as error:
        raise CheckpointError("was written by another version of stoker: use another directory") from error


def loaders_of_values(values: dict[str, Any]) -> dict[str, LoaderRecord]:
    """Read the records of loaders from `Position.values`."""
    return {
        key: LoaderRecord(**{**one, "ahead": tuple(one["ahead"]), "rounds": _pairs(one["rounds"])})
        for key, one in values.items()
    }


def _pairs(values: Any) -> tuple[tuple[int, str], ...]:
    return tuple((number, text) for number, text in values)


def _leave_out(described: Any) -> None:
    """What is large is read when the run has come back."""


def is_finished(directory: Path, command: list[str]) -> bool:
    """Whether this command has run to its end, with these checkpoints."""
    try:
        read = json.loads((directory / _FINISHED).read_bytes())
    except (OSError, ValueError):
        return _was_killed_after_its_end(directory, command)
    names = _names(directory)
    return bool(names) and read == {"command": command, "newest": names}


def _was_killed_after_its_end(directory: Path, command: list[str]) -> bool:
    """Whether the last checkpoint was taken, and the mark was not made."""
    for name in Directory(directory).names()[:1]:
        with contextlib.suppress(CheckpointError):
            position = _position_in(Directory(directory).manifest(name).document)
            return position is not None and position.is_past and position.command == tuple(command)
    return False


def mark_finished(directory: Path, command: list[str]) -> None:
    """Note that this command has run to its end."""
    partial, names = directory / f"{_FINISHED}.{os.getpid()}", _names(directory)
    if names:
        partial.unlink(missing_ok=True)
        Disk().write(partial, [json.dumps({"command": command, "newest": names}).encode()])
        Disk().rename(partial, directory / _FINISHED)
        Disk().settle(directory)


def _names(directory: Path) -> list[str]:
    """The newest checkpoint of each node, or of each fit of a framework."""
    folders = [directory, *sorted(path for path in directory.glob("*-*") if path.is_dir())]
    return [name for folder in folders for name in Directory(folder).names()[:1]]
