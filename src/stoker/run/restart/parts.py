"""What of a script can be saved: modules, optimizers, schedulers and gradient scalers, as the script makes them."""

import weakref
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

_KINDS: dict[str, tuple[type, ...]] = {
    "module": (torch.nn.Module,),
    "optimizer": (torch.optim.Optimizer,),
    "scheduler": (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler),
    "scaler": (torch.amp.GradScaler,),
}
"""The classes whose `__init__` is watched: some of torch's schedulers do not call that of their parent."""


class Parts:
    """All of them, while they live."""

    def __init__(self) -> None:
        self._numbered = {name: _Numbered(kinds) for name, kinds in _KINDS.items()}
        self._counts: dict[str, int] = {}

    def found(self) -> dict[str, Any]:
        """Those that live now, by kind and number."""
        found: dict[str, list[Any]] = {name: numbered.alive() for name, numbered in self._numbered.items()}
        found["module"] = _roots(found["module"])
        self._counts = {name: len(some) for name, some in found.items() if some}
        return {f"{name}{number}": part for name, some in found.items() for number, part in enumerate(some)}

    def words(self) -> str:
        """What was found, and what was not."""
        names = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in self._counts.items()]
        missing = [f"no {name}" for name in _KINDS if name not in self._counts and name != "scaler"]
        return ", ".join([*names, "the training loader", "random generators", *missing])


class _Numbered:
    """The objects of one kind that the script has made, in order."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._made: list[weakref.ref[Any]] = []
        for kind in kinds:
            self._watch(kind, "__init__")
        if torch.nn.Module in kinds:
            self._watch(torch.nn.Module, "__setstate__")  # copies are not made by __init__

    def _watch(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)
        made = self._made

        def watched(self: Any, *arguments: Any, **named: Any) -> Any:
            made.append(weakref.ref(self))
            return original(self, *arguments, **named)

        watched.__wrapped__ = original  # type: ignore[attr-defined]
        watched.__name__, watched.__doc__ = name, original.__doc__
        setattr(kind, name, watched)

    def alive(self) -> list[Any]:
        """Those that live, each once."""
        seen: dict[int, Any] = {}
        for reference in self._made:
            found = reference()
            if found is not None:
                seen.setdefault(id(found), found)
        return list(seen.values())


def _roots(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Modules that have a state, and are not part of another."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner and module.state_dict()]
