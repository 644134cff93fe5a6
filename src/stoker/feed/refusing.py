"""Iterators raise if user code goes on with them without workers: in forked children, and when their loader was closed."""

import weakref
from typing import Any

from stoker.host import forks

_iterators: "weakref.WeakSet[Any]" = weakref.WeakSet()


def refuse_in_children(iterator: Any) -> None:
    """Make an iterator raise in forked children: a batch that a child took would be missing in this process."""
    _iterators.add(iterator)


def refuse_when_closed(iterator: Any) -> None:
    """Make an iterator raise whose loader was closed before the epoch's end: it would seem to have come to that end."""
    if not iterator._has_ended:
        iterator._is_due, iterator._obtain = True, _refuse_after_close


def _refuse_after_close() -> Any:
    raise RuntimeError("this iterator's loader was closed: call iter() of the loader")


def _refuse() -> Any:
    raise RuntimeError("this iterator belongs to the process that this one was forked from: call iter() of the loader")


def _after_fork_in_child() -> None:
    for iterator in list(_iterators):
        iterator._obtain = _refuse


forks.register(forks.Stage.ITERATORS, after_in_child=_after_fork_in_child)
