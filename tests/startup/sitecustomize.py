"""Runs at the start of every Python that tests start. It makes torch cheaper to import, which is most of what they cost.

The collector pauses while torch is imported, and never looks at what that has made: 1.0 s of CPU instead of 1.5 s. It
pauses, too, while torch's compiler is imported, as the first step of an optimizer does. All else is collected as always.

The scripts of the gallery run without this file, with everything as it is for users.
"""

import functools
import gc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

frozen = 0
"""So many objects the collector does not look at because of this file."""


def execute_paused(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    global frozen
    gc.disable()
    try:
        execute(module)
        if module.__name__ == "torch":  # the compiler comes later, when there is more that is not torch's
            gc.freeze()
            frozen = gc.get_freeze_count()
    finally:
        gc.enable()


class Pausing:
    """An import hook that waits for those modules."""

    names = {"torch", "torch._dynamo"}

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in cls.names:
            return None
        cls.names.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(execute_paused, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Pausing)
