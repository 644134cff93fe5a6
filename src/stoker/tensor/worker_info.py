"""`torch.utils.data.get_worker_info()` in workers that are threads.

torch keeps one answer for the whole process. While worker threads live, its function gives each of them its own answer, and
every other thread the usual one. torch's collation asks it, too, to find out whether a batch goes to another process. There
the answer in a worker thread is None.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from stoker.host import forks
from stoker.internals import worker_info
from stoker.internals.names import collate_globals

_own = threading.local()
_lock = threading.Lock()
_shown = 0
"""In how many threads there is an answer of their own."""


def _answer(of_process: Any) -> Any:
    info = getattr(_own, "info", None)
    if info is None or sys._getframe(2).f_globals is collate_globals:
        return of_process
    return info


@contextlib.contextmanager
def shown(info: Any) -> Iterator[None]:
    """Within this, `get_worker_info()` gives `info` in this thread."""
    global _shown
    if not worker_info.can_be_answered():
        yield  # another torch, which keeps it in another way
        return
    with _lock:
        _shown += 1
        worker_info.answer_by(_answer)
    _own.info = info
    try:
        yield
    finally:
        _own.info = None
        with _lock:
            _shown -= 1
            if not _shown:
                worker_info.answer_as_torch()


@contextlib.contextmanager
def answered(info: Any) -> Iterator[None]:
    """Within this, `get_worker_info()` gives `info` here, whatever it gives otherwise: in a worker or in none."""
    before, of_process = getattr(_own, "info", None), worker_info.of_process()
    if before is not None:
        _own.info = info
        try:
            yield
        finally:
            _own.info = before
    elif of_process is not None:
        worker_info.set_of_process(info)
        try:
            yield
        finally:
            worker_info.set_of_process(of_process)
    else:
        with shown(info):
            yield


def _in_child() -> None:
    """A forked process has none of the worker threads, even if one of them forked it."""
    global _lock, _shown
    _lock = threading.Lock()
    _shown = 0
    _own.__dict__.clear()
    worker_info.answer_as_torch()


forks.register(forks.Stage.LOCKS, after_in_child=_in_child)


class _Noticed:
    """A worker's info that notices when it is asked which worker this is, or of how many."""

    def __init__(self, info: Any) -> None:
        self._info = info
        self._is_asked = False

    def __getattr__(self, name: str) -> Any:
        if name != "dataset":
            self._is_asked = True
        return getattr(self._info, name)

    def __repr__(self) -> str:
        self._is_asked = True
        return repr(self._info)

    def initial_seed(self) -> int:
        """What `torch.initial_seed()` gives."""
        self._is_asked = True
        return torch.default_generator.initial_seed()

    def were_asked(self) -> bool:
        """Whether user code has asked since the last call."""
        was, self._is_asked = self._is_asked, False
        return was


def notice_questions() -> _Noticed:
    """From now on, notice in this worker process when user code asks which worker it is in, or for the worker's seed."""
    noticed = _Noticed(worker_info.of_process())
    worker_info.set_of_process(noticed)
    torch.random.__dict__["_stoker_initial_seed"] = noticed.initial_seed
    torch.initial_seed.__code__ = _ask.__code__  # not the function: user code may have imported it before
    return noticed


def _ask() -> Any:
    # Runs as the code of torch's function, among the names of its module.
    return _stoker_initial_seed()  # type: ignore[name-defined] # noqa: F821
