"""In the script's process: when torch has been imported, its DataLoader is replaced. Scripts without torch never notice.

Torch's classes are looked up by name at many places (`torch.utils.data`, `torch.utils.data.dataloader`, `from ...
import`), and all of them come after `import torch` has ended. So that is the moment, and an import hook waits for it.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stoker.run import ending

SETTINGS = "STOKER_RUN"
"""The environment variable that tells the hook what to do, as JSON."""


class _Then(importlib.abc.Loader):
    """A module loader that imports the module, and then calls a function."""

    def __init__(self, loader: Any, act: Callable[[ModuleType], None], finder: Any) -> None:
        self.loader = loader
        self.act = act
        self.finder = finder

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Do what the module's own loader does."""
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Import the module; then act."""
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        self.loader.exec_module(module)
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.act(module)


class _Waiting(importlib.abc.MetaPathFinder):
    """An import hook that removes itself when its module is imported. Many only look for torch, and do not import it."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.act = act

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module by the other finders."""
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self.act, self)
        return spec


def after_import(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call a function when a module has been imported: now, if it has."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Waiting(name, act))


def install() -> None:
    """Wait for torch in this process."""
    text = os.environ.get(SETTINGS)
    settings = json.loads(text) if text and sys.platform == "linux" else {}
    if settings.get("mounts"):
        from stoker.mount import replaced  # other runs need none of it

        replaced.install(settings["mounts"])
    if settings and "torch" not in sys.modules:
        ending.watch()
        if not settings.get("debug"):
            ending.show_own_frames()
        if settings.get("analyze"):
            ending.leave_quietly()
        after_import("torch", lambda _: _replace(settings))


def _replace(settings: dict[str, Any]) -> None:
    from stoker.run.replace import replace

    replace(settings)
