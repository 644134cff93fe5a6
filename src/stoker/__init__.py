"""Stoker keeps accelerators fed.

The public names, loaded when first used: importing stoker imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.checkpoint.checkpointer import Checkpointer as Checkpointer
    from stoker.checkpoint.stats import CheckpointStats as CheckpointStats
    from stoker.decide.model import Prediction as Prediction
    from stoker.decide.model import Share as Share
    from stoker.decide.model import predict as predict
    from stoker.decide.pace import IterationTimes as IterationTimes
    from stoker.decide.pace import StaggerJob as StaggerJob
    from stoker.decide.stagger import Stagger as Stagger
    from stoker.decide.stagger import StaggerMany as StaggerMany
    from stoker.decide.stagger import stagger as stagger
    from stoker.decide.stagger import stagger_many as stagger_many
    from stoker.meter import LoaderStats as LoaderStats
    from stoker.plan import Plan as Plan
    from stoker.profile import Profile as Profile
    from stoker.profile import Rates as Rates
    from stoker.source.opening import open_source as open_source
    from stoker.tensor.dataset import Dataset as Dataset
    from stoker.torch.loader import DataLoader as DataLoader

    __version__: str

_HOMES = {
    "CheckpointStats": "stoker.checkpoint.stats",
    "Checkpointer": "stoker.checkpoint.checkpointer",
    "DataLoader": "stoker.torch.loader",
    "Dataset": "stoker.tensor.dataset",
    "IterationTimes": "stoker.decide.pace",
    "LoaderStats": "stoker.meter",
    "Plan": "stoker.plan",
    "Prediction": "stoker.decide.model",
    "Profile": "stoker.profile",
    "Rates": "stoker.profile",
    "Share": "stoker.decide.model",
    "Stagger": "stoker.decide.stagger",
    "StaggerJob": "stoker.decide.pace",
    "StaggerMany": "stoker.decide.stagger",
    "open_source": "stoker.source.opening",
    "predict": "stoker.decide.model",
    "stagger": "stoker.decide.stagger",
    "stagger_many": "stoker.decide.stagger",
}

__all__ = [
    "CheckpointStats",
    "Checkpointer",
    "DataLoader",
    "Dataset",
    "IterationTimes",
    "LoaderStats",
    "Plan",
    "Prediction",
    "Profile",
    "Rates",
    "Share",
    "Stagger",
    "StaggerJob",
    "StaggerMany",
    "__version__",
    "open_source",
    "predict",
    "stagger",
    "stagger_many",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use."""
    if name == "__version__":
        value: object = _version()
    elif name in _HOMES:
        try:
            value = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            hint = _hint(name, error)
            if hint is None:
                raise
            raise hint from None  # it says all: a traceback before it would hide it
    else:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    """The version that was installed; the build takes it from the newest tag."""
    from importlib import metadata

    try:
        return metadata.version("stoker")
    except metadata.PackageNotFoundError:  # a folder on the path that was never installed
        return "0+unknown"


def _hint(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError | None:
    """The same error in words that say what to install, if an optional package is missing."""
    from stoker.extras import EXTRAS

    for extra in EXTRAS:
        if error.name in extra.modules:
            return ModuleNotFoundError(f"stoker.{name} needs {extra.called}: {extra.command}", name=error.name)
    return None


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
