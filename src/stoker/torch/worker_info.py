"""`torch.utils.data.get_worker_info()` in workers that are threads.

torch keeps one answer for the whole process. While worker threads live, its function gives each of them its own, and every
other thread what it always gave. The function's code is replaced, not the function: user code may have imported it before.
torch's collation asks it, too, to find out whether a batch has to travel to another process: to it a thread is none.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from stoker.host import forks

_own = threading.local()
_lock = threading.Lock()
_torchs_code = torch_worker.get_worker_info.__code__
_shown = 0
"""In how many threads there is an answer of their own."""


def _ask() -> Any:
    # Runs as the code of torch's function, among the names of its module.
    return _stoker_worker_info(_worker_info)  # type: ignore[name-defined] # noqa: F821


def _answer(of_process: Any) -> Any:
    info = getattr(_own, "info", None)
    if info is None or sys._getframe(2).f_globals is torch_collate.__dict__:
        return of_process
    return info


@contextlib.contextmanager
def shown(info: Any) -> Iterator[None]:
    """Within this, `get_worker_info()` gives `info` in this thread."""
    global _shown
    if _torchs_code.co_names != ("_worker_info",):
        yield  # another torch, which keeps it in another way
        return
    with _lock:
        _shown += 1
        torch_worker._stoker_worker_info = _answer  # type: ignore[attr-defined]
        torch_worker.get_worker_info.__code__ = _ask.__code__
    _own.info = info
    try:
        yield
    finally:
        _own.info = None
        with _lock:
            _shown -= 1
            if not _shown:
                torch_worker.get_worker_info.__code__ = _torchs_code


def show_dataset(dataset: Any) -> None:
    """In a worker, process or thread: show user code another dataset than the one that torch's fetcher has."""
    if getattr(_own, "info", None) is not None:
        _own.info = _with_dataset(_own.info, dataset)
    elif torch_worker._worker_info is not None:
        torch_worker._worker_info = _with_dataset(torch_worker._worker_info, dataset)


def _with_dataset(info: Any, dataset: Any) -> Any:
    return type(info)(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=dataset)


def _in_child() -> None:
    """A process that was forked has none of the threads, not even as the one that forked it."""
    global _lock, _shown
    _lock = threading.Lock()
    _shown = 0
    _own.__dict__.clear()
    torch_worker.get_worker_info.__code__ = _torchs_code


forks.register(forks.Stage.LOCKS, after_in_child=_in_child)
