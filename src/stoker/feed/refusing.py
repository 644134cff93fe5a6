"""Iterators raise in forked children if user code goes on with them there: their workers belong to the parent."""

import weakref
from typing import Any

from stoker.host import forks

_iterators: "weakref.WeakSet[Any]" = weakref.WeakSet()


def refuse_in_children(iterator: Any) -> None:
    """Make an iterator raise in forked children: a batch that a child took would be missing in this process."""
    _iterators.add(iterator)


def _refuse() -> Any:
    raise RuntimeError("this iterator belongs to the process that this one was forked from: call iter() of the loader")


def _after_fork_in_child() -> None:
    for iterator in list(_iterators):
        iterator._obtain = _refuse


forks.register(forks.Stage.ITERATORS, after_in_child=_after_fork_in_child)
