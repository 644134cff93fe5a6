"""The updates of a script, as torch makes them: they are counted, and so are backward passes.

A step that a gradient scaler skips is an update, too: its batch was used. Several optimizers that step one after the other,
without a batch in between, make one update.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Updates:
    """Counts from now on, and tells `made` of each update."""

    def __init__(self, made: Callable[[], None]) -> None:
        self.number = self.backwards = 0
        self.is_asked = False
        """Whether a batch was asked for since the last update."""
        self.is_over = True
        """Whether all that belongs to the last update was done."""
        self.thread = 0
        """The thread that makes updates."""
        self.notes_draws = False
        """Whether to note what random generators are after an update."""
        self._drawn: tuple[bytes, ...] = ()
        self._made = made
        register_optimizer_step_post_hook(self._stepped)
        _after(torch.amp.GradScaler, "step", self._stepped)
        _after(torch.autograd, "backward", self._passed_backward)

    def _stepped(self, *_: Any) -> None:
        if self.notes_draws:
            self._drawn = _generators()
        if self.is_asked:  # else it is another optimizer of the same update
            self.is_asked = self.is_over = False
            self.number += 1
            self.thread = threading.get_ident()
            self._made()

    def _passed_backward(self) -> None:
        self.backwards += 1

    @property
    def were_numbers_drawn(self) -> bool:
        """Whether random numbers have been drawn since the last update."""
        return self._drawn != _generators()


def _generators() -> tuple[bytes, ...]:
    """Torch's generators: equal as long as nobody draws from them."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return tuple(state.numpy().tobytes() for state in states)


def _after(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Do something after every call of a function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        act()
        return result

    setattr(owner, name, call)
