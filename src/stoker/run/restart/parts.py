"""The objects of a script that can be saved: modules, optimizers, schedulers and gradient scalers that the script makes."""

import weakref
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

from stoker.internals.tensors import version_of

_KINDS: dict[str, tuple[type, ...]] = {
    "module": (torch.nn.Module,),
    "optimizer": (torch.optim.Optimizer,),
    "scheduler": (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler),
    "scaler": (torch.amp.GradScaler,),
}
"""The classes whose `__init__` is watched: some of torch's schedulers do not call that of their parent."""


class LivingParts:
    """All such objects that live. A script may make others later: a scheduler for its first epoch, models for folds."""

    def __init__(self) -> None:
        self._numbered = {name: _MadeObjects(kinds) for name, kinds in _KINDS.items()}
        self._counts: dict[str, int] = {}
        self._decisive: list[int] = []

    def found(self) -> dict[str, Any]:
        """The living objects, by kind and number. This does not keep schedulers alive."""
        found: dict[str, list[Any]] = {name: numbered.alive() for name, numbered in self._numbered.items()}
        found["module"] = _roots(found["module"])
        self._counts = {name: len(some) for name, some in found.items() if some}
        self._decisive = self._decisive_now()
        modules = found["module"]
        found["scheduler"] = [_Loosely(scheduler) for scheduler in found["scheduler"]]
        parts = {f"{name}{number}": part for name, some in found.items() for number, part in enumerate(some)}
        return {**parts, "frozen": _Frozen(modules)}

    @property
    def have_changed(self) -> bool:
        """Whether there are other optimizers and schedulers than those that were found last."""
        return self._decisive != self._decisive_now()

    def _decisive_now(self) -> list[int]:
        return [id(part) for name in ("optimizer", "scheduler") for part in self._numbered[name].alive()]

    @property
    def are_any(self) -> bool:
        """Whether the script has made any."""
        return any(numbered.has_any for numbered in self._numbered.values())

    def schedulers(self) -> list[Any]:
        """The schedulers that live now."""
        return self._numbered["scheduler"].alive()

    def versions(self) -> int:
        """A number that changes with every change of a parameter."""
        parameters = (
            parameter for module in self._numbered["module"].alive() for parameter in module.parameters(recurse=False)
        )
        return sum(version_of(parameter) for parameter in parameters if not parameter.is_inference())

    def words(self) -> str:
        """What was found, and what was not."""
        names = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in self._counts.items()]
        missing = [f"no {name}" for name in _KINDS if name not in self._counts and name != "scaler"]
        return ", ".join([*names, "the training loader", "random generators", *missing])


class _Frozen:
    """Which parameters of some modules are not trained: a script may change that in one of its epochs."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self._modules = modules

    def state_dict(self) -> dict[str, list[str]]:
        return {
            str(number): [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
            for number, module in enumerate(self._modules)
        }

    def load_state_dict(self, state: dict[str, list[str]]) -> None:
        for number, module in enumerate(self._modules):
            frozen = set(state[str(number)])
            for name, parameter in module.named_parameters():
                if parameter.requires_grad == (name in frozen):
                    parameter.requires_grad_(name not in frozen)


class _Loosely:
    """A part that is not kept alive here: it ends when the script drops it."""

    def __init__(self, part: Any) -> None:
        self._part = weakref.ref(part)

    def state_dict(self) -> Any:
        part = self._part()
        return {} if part is None else part.state_dict()

    def load_state_dict(self, state: Any) -> None:
        part = self._part()
        if part is not None:
            part.load_state_dict(state)


class _MadeObjects:
    """The objects of one kind that the script has made, in order."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._made: list[weakref.ref[Any]] = []
        self.has_any = False
        for kind in kinds:
            self._watch(kind, "__init__")
        if torch.nn.Module in kinds:
            self._watch(torch.nn.Module, "__setstate__")  # copies are not made by __init__

    def _watch(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)
        numbered = self

        def watched(self: Any, *arguments: Any, **named: Any) -> Any:
            numbered._made.append(weakref.ref(self))
            numbered.has_any = True
            return original(self, *arguments, **named)

        watched.__wrapped__ = original  # type: ignore[attr-defined]
        watched.__name__, watched.__doc__ = name, original.__doc__
        setattr(kind, name, watched)

    def alive(self) -> list[Any]:
        """The living objects, each once."""
        alive: dict[int, tuple[Any, weakref.ref[Any]]] = {}
        for reference in self._made:
            if (part := reference()) is not None:
                alive.setdefault(id(part), (part, reference))
        self._made[:] = [reference for _, reference in alive.values()]
        return [part for part, _ in alive.values()]


def _roots(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Modules that have a state, and are not part of another."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner and module.state_dict()]
