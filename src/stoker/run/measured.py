"""What an analysis has found so far, as a document between the script's process and the command that started it.

The script's process writes it after every step. So nothing is lost when the script ends before the analysis does, or has
to be ended; and the next start goes on with what is missing.
"""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from stoker.measure.series import Series
from stoker.profile import write_text


@dataclass
class Measured:
    """Everything that the phases found. What is missing was not measured."""

    done: list[str] = field(default_factory=list)
    """The phases that need not be repeated."""
    is_complete: bool = False
    began: float = 0.0
    """When the script first iterated a loader, by the clock on the wall; 0 if it has not."""
    granted_s: float = 0.0
    """How much longer than usual it may all take."""
    loaders: int = 0
    """How many loaders it iterated."""
    loader: int = 0
    """The number of the training loader, in the order in which the script first iterates them; 0 is unknown."""
    word: str = ""
    """Why there is nothing more, if the script is to be ended without it."""
    workers: int = 0
    prefetch: int = 2
    threads: bool = False
    world: int = 1
    fixed: list[str] = field(default_factory=list)
    """What the script says explicitly of its loader; a plan cannot change it."""
    cores: float = 1.0
    memory_bytes: int = 0
    room_bytes: int = 0
    others: float = 0.0
    """Cores that others had, in the step in which they had most, if that mattered; and a sentence on it."""
    busy: str = ""
    batch: int = 0
    gpu: Series = field(default_factory=Series)
    host: Series = field(default_factory=Series)
    loop_cores: float = 0.0
    prep: dict[int, Series] = field(default_factory=dict)
    prep_threads: dict[int, Series] = field(default_factory=dict)
    prep_busy: float = 1.0
    storage: dict[int, Series] = field(default_factory=dict)
    storage_rested: float = 0.0
    cache: float = 0.0
    peer: float = 0.0
    """Samples per second from other hosts; 0 is unknown."""
    remote: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    """By the part that workers on other hosts do: samples per second that they prepare, the processor time of this host for
    each of them in parts of what preparing it takes, and how many workers there were."""
    prep_on_device: dict[str, Series] = field(default_factory=dict)
    loop_on_device: dict[str, Series] = field(default_factory=dict)
    cached_on_device: dict[str, Series] = field(default_factory=dict)
    """By the part of preparing that the device does: that alone, the loop beside it, and both with cached samples."""
    cached: Series = field(default_factory=Series)
    cold: Series = field(default_factory=Series)
    cached_part: float = 0.0
    samples: int = 0
    bytes: int = 0
    bytes_known: bool = False
    spread: float = 0.3
    device: str = "cpu"
    notes: list[str] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        """Whether a profile can be made of it: how fast the loop is, and how fast samples are prepared."""
        return bool(self.gpu.times) and any(series.times for series in self.prep.values())

    @property
    def parts(self) -> list[str]:
        """What was measured, in words."""
        parts = {
            "the loop": self.gpu.times,
            "preparing": self.prep,
            "cached samples in the loop": self.cached.times,
            "what the GPU could prepare": self.cached_on_device,
            "storage": self.storage,
            "cold samples in the loop": self.cold.times,
        }
        return [name for name, times in parts.items() if times]

    def note(self, words: str) -> None:
        """Add a note for the user, once."""
        if words not in self.notes:
            self.notes.append(words)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document, whole or not at all."""
        write_text(path, json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self | None:
        """Read the document; None if there is none."""
        try:
            document = json.loads(Path(path).read_text())
        except FileNotFoundError:
            return None
        return cls(**{item.name: _restored(item.type, document[item.name]) for item in fields(cls)})


def _restored(kind: Any, value: Any) -> Any:
    if kind is Series:
        return Series(**value)
    if kind == dict[int, Series]:
        return {int(count): Series(**series) for count, series in value.items()}
    if kind == dict[str, Series]:
        return {part: Series(**series) for part, series in value.items()}
    return value
