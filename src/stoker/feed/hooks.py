"""What `stoker run` adds to every loader of a script. A hook cannot overwrite another hook."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stoker.plan import Plan

Wrap = Callable[[Any, Callable[[], Any]], Any]
"""Stands between `iter()` and a loader's own iterator: it is given the loader, and what makes that iterator."""


@dataclass(slots=True)
class Hooks:
    """The hooks of this process."""

    plan: Plan = field(default_factory=Plan)
    """The plan of loaders that are given none."""
    replays: bool = False
    """Whether a resumed epoch without a seed is prepared again from its start, so that augmentations are the same, too."""
    wrap: Wrap | None = None
    made: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with every loader that is made."""

    def wrap_iterators(self, wrap: Wrap) -> None:
        """From now on, `iter(loader)` returns `wrap(...)` of the loader's iterator."""
        if self.wrap is not None:
            raise AssertionError(f"iterators are wrapped by {self.wrap} already")
        self.wrap = wrap

    def unwrap_iterators(self, wrap: Wrap) -> None:
        """Undo it."""
        if self.wrap == wrap:
            self.wrap = None


HOOKS = Hooks()
