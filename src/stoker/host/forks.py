"""What happens at a fork. The order does not depend on which modules were imported first.

    THREADS    before           a thread of ours that is at work finishes: it would not exist in the child
    BATCHES    before           memory that a child would share is made private
    LOCKS      before           locks are taken, so that the fork finds nobody within
                     -- fork --
    LOCKS      after            locks are released, or made anew: their holders are not in the child
    HOLDINGS   after            the child lets go of its parent's locks of files, records and seats
    ITERATORS  after            the parent's iterators raise in the child if user code goes on with them

Hooks of one stage do not depend on each other; they are called in the order of their modules' names. If one fails, the
others are still called, and Python reports the error as it reports all errors in hooks.
"""

import enum
import os
from collections.abc import Callable
from contextlib import ExitStack

Hook = Callable[[], None]


class Stage(enum.IntEnum):
    """When a hook is called; see above."""

    THREADS = 0
    BATCHES = 1
    LOCKS = 2
    HOLDINGS = 3
    ITERATORS = 4


_before: list[tuple[Stage, Hook]] = []
_in_parent: list[tuple[Stage, Hook]] = []
_in_child: list[tuple[Stage, Hook]] = []


def register(
    stage: Stage, *, before: Hook | None = None, after_in_parent: Hook | None = None, after_in_child: Hook | None = None
) -> None:
    """Register a function to be called at every fork of this process. Without forks it is never called."""
    for hooks, hook in ((_before, before), (_in_parent, after_in_parent), (_in_child, after_in_child)):
        if hook is not None:
            hooks.append((stage, hook))  # at once, as several threads may import


def _run(hooks: list[tuple[Stage, Hook]]) -> None:
    with ExitStack() as turns:  # which lets all have their turn, the last one in first
        for stage in reversed(Stage):
            turns.callback(_run_stage, hooks, stage)


def _run_stage(hooks: list[tuple[Stage, Hook]], stage: Stage) -> None:
    """Look for its hooks now: a thread that was waited for in the stage before may have imported some."""
    with ExitStack() as turns:
        for hook in sorted((hook for its, hook in hooks if its is stage), key=_module, reverse=True):
            turns.callback(hook)


def _module(hook: Hook) -> str:
    return hook.__module__


if hasattr(os, "register_at_fork"):  # there are systems that do not fork
    os.register_at_fork(
        before=lambda: _run(_before), after_in_parent=lambda: _run(_in_parent), after_in_child=lambda: _run(_in_child)
    )
