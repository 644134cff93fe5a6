"""The stores that a process has open: one for each folder, shared by all its users, closed by the last of them.

A forked child opens its own stores: it cannot use its parent's transactions.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from stoker.cache.store import Store
from stoker.host import forks

_stores: dict[Path, Store] = {}
_lock = threading.RLock()
_unused: deque[Store] = deque()
"""Stores whose last user has gone, perhaps inside the garbage collector: the next call closes them."""


def acquire(folder: Path) -> Store:
    """The store in a folder, opened once in each process. Call `release` when it is not needed any more."""
    with _lock:
        _close_unused()
        store = _stores.get(folder)
        if store is None or not store.is_there():
            if store is not None:
                store.close()
            store = _stores[folder] = Store(folder)
        store.users += 1
        return store


def release(store: Store) -> None:
    """Give back a store from `acquire`; the last one closes it. May be called at any line."""
    _unused.append(store)


def close_unused() -> None:
    """Close what was released: its memory is given back when its folder goes. Not for the garbage collector."""
    with _lock:
        _close_unused()


def _close_unused() -> None:
    while _unused:
        store = _unused.popleft()
        store.users -= 1
        if store.users == 0 and _stores.get(store.folder) is store:
            del _stores[store.folder]
            store.close()


@contextlib.contextmanager
def visiting(folder: Path) -> Iterator[Store]:
    """Acquire a store within the context."""
    store = acquire(folder)
    try:
        yield store
    finally:
        release(store)
        close_unused()


def forget(folder: Path) -> None:
    """Forget the store of a removed folder. Users of it in this process get an error from their next call."""
    with _lock:
        store = _stores.pop(folder, None)
        if store is not None:
            store.close()


def _before_fork() -> None:
    _lock.acquire()
    for store in _stores.values():
        store.lock.acquire()


def _after_fork_in_parent() -> None:
    for store in _stores.values():
        store.lock.release()
    _lock.release()


def _after_fork_in_child() -> None:
    """Close inherited stores, which are the parent's: LMDB opens a folder only once in a process."""
    for store in _stores.values():
        store.close()
        store.lock.release()
    _stores.clear()
    _unused.clear()
    _lock.release()


forks.register(
    forks.Stage.LOCKS,
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
