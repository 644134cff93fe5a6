"""Finds what a run goes on from: the newest checkpoint that is whole on all nodes."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoint.files import Damaged, Directory, Manifest
from stoker.checkpoint.ranks import CheckpointRanks
from stoker.checkpoint.snapshot import check_fits, loading_order, state_of
from stoker.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """A whole checkpoint."""

    path: Path
    manifest: Manifest
    contents: list[bytearray]
    """Of its pieces."""

    def load_into(self, stateful: dict[str, Any]) -> Any:
        """Load all states. Returns what was saved beside them. Raises CheckpointError if something does not fit."""
        try:
            states, extra = state_of(self.manifest.document, self.contents)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        check_fits(stateful, states, f"{self.path}")
        for key in loading_order(stateful):
            try:
                stateful[key].load_state_dict(states[key])
            except Exception as error:
                raise CheckpointError(f"{self.path} does not fit this run: {key} refuses its state: {error}") from error
        return extra


def newest_whole(directory: Directory, ranks: CheckpointRanks, damaged: list[str]) -> WholeCheckpoint | None:
    """The newest checkpoint that all nodes have whole. None only if no node has any, not even a damaged one.

    The names of those that are damaged here are added to `damaged`.
    """
    names = directory.names()
    whole: dict[int, str] = {}
    found: WholeCheckpoint | None = None
    for name in names:
        try:
            if found is None:
                manifest, contents = directory.load(name)
                found = WholeCheckpoint(directory.path / name, manifest, contents)
            else:
                manifest = directory.verify(name)
        except Damaged as damage:
            damaged.append(name)
            warnings.warn(f"a damaged checkpoint was passed by and left as it is: {name}: {damage}", stacklevel=3)
            continue
        except CheckpointError as error:
            raise CheckpointError(f"{directory.path / name}: {error}") from error
        whole.setdefault(manifest.step, name)
        if ranks.is_alone:
            break  # a single process need not agree with others
    agreed = _agree(ranks, list(whole), bool(names), directory.path)
    if agreed is None:
        return None
    if found is None or found.manifest.step != agreed:
        found = WholeCheckpoint(directory.path / whole[agreed], *directory.load(whole[agreed]))
    return found


def _agree(ranks: CheckpointRanks, steps: list[int], are_some: bool, path: Path) -> int | None:
    """The newest step that all nodes have whole. None if no node has any checkpoint, not even a damaged one."""
    said = ranks.exchange([steps, are_some])
    common: set[int] = set.intersection(*(set(theirs) for theirs, _ in said))
    if common:
        return max(common)
    if len(said) > 1 and any(theirs for theirs, _ in said):
        lists = ", ".join(f"rank {rank}: {theirs}" for rank, (theirs, _) in enumerate(said))
        raise CheckpointError(f"no step is whole on all nodes ({lists})")
    if any(there for _, there in said):
        raise CheckpointError(f"none of the checkpoints in {path} is whole; the warnings say why")
    return None


def left_elsewhere(path: Path, node: int | None) -> Path | None:
    """Where checkpoints of a run on another number of nodes lie, if there are any."""
    home = path if node is None else path.parent
    return next((other for other in sorted({home, *home.glob("node-*")} - {path}) if Directory(other).names()), None)
