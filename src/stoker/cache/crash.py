"""A process that a signal kills while it reads a store says which store that was.

LMDB maps its file. If the file is damaged while it is in use, reading it may kill the process (SIGBUS, SIGSEGV), and no
code of ours runs after that. But Python's faulthandler then writes the names of the running functions and of their source
files. So each store has a copy of the functions that read it, and the copy names the store as its source file.
"""

import contextlib
import faulthandler
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any


def name_at_crash(store: Any, folder: Path, methods: Iterable[str]) -> None:
    """Show the store's name in faulthandler's output if the process is killed within one of its methods."""
    for name in methods:
        method: FunctionType = getattr(type(store), name)
        code = method.__code__.replace(co_filename=f"the cache in {folder}, which is damaged if the process ends here")
        copy = FunctionType(code, method.__globals__, name, method.__defaults__, method.__closure__)
        setattr(store, name, MethodType(copy, store))
    # The loader reports deaths of its workers itself.
    if multiprocessing.parent_process() is None and not faulthandler.is_enabled():
        with contextlib.suppress(Exception):  # there may be no stderr, or one that is no file
            faulthandler.enable(all_threads=False)
