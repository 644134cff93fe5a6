"""A process that ends by a signal while it looks at a store says which one.

LMDB maps its file. If that is torn while it is in use, a look at it may end the process (SIGBUS, SIGSEGV), and no code of
ours runs after that. But Python's faulthandler then writes the names of the functions that were running, and of the files
that they are from: so for each store there is a copy of the functions that look at it, whose file is that store.
"""

import contextlib
import faulthandler
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any


def name_at_crash(store: Any, folder: Path, methods: Iterable[str]) -> None:
    """Let methods of a store be shown under its name, should the process end in one of them."""
    for name in methods:
        method: FunctionType = getattr(type(store), name)
        code = method.__code__.replace(co_filename=f"the cache in {folder}, which is damaged if the process ends here")
        copy = FunctionType(code, method.__globals__, name, method.__defaults__, method.__closure__)
        setattr(store, name, MethodType(copy, store))
    # A loader tells of its workers itself.
    if multiprocessing.parent_process() is None and not faulthandler.is_enabled():
        with contextlib.suppress(Exception):  # there may be no stderr, or one that is no file
            faulthandler.enable(all_threads=False)
