"""Packages that only a part of Stoker needs: which extra brings them, what for, and whether they are there.

Code that needs such a package checks here first, before anything that takes long.
"""

from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from stoker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Extra:
    """One of the extras in `pip install 'stoker[NAME]'`."""

    name: str
    modules: tuple[str, ...]
    called: str
    """What people call the package."""
    user: str
    """What needs it."""

    @property
    def is_installed(self) -> bool:
        """Whether all packages of this extra can be imported."""
        return all(find_spec(module) is not None for module in self.modules)

    @property
    def versions(self) -> str:
        """The installed versions of its packages."""
        return ", ".join(f"{module} {metadata.version(module)}" for module in self.modules)

    @property
    def command(self) -> str:
        """The command that installs it."""
        return f"pip install 'stoker[{self.name}]'"

    def check(self) -> None:
        """Raise an error that says what to install, if it is missing."""
        if not self.is_installed:
            raise ConfigError(f"{self.user} needs {self.called}: {self.command}")


TORCH = Extra("torch", ("torch",), "PyTorch", "training")
CACHE = Extra("cache", ("lmdb", "xxhash"), "LMDB and xxhash", "a cache")
REPORT = Extra("report", ("bokeh", "jinja2"), "Bokeh", "a page")
OBJECTS = Extra("objects", ("obstore",), "obstore", "an object store")
TABLES = Extra("tables", ("pyarrow",), "PyArrow", "a table")
EXPORT = Extra("export", ("safetensors",), "safetensors", "an export as safetensors")
OFFLOAD = Extra("offload", ("cloudpickle", "xxhash"), "cloudpickle and xxhash", "preparation on other hosts")
RAY = Extra("ray", ("ray",), "Ray", "a Ray cluster that starts the workers")
SCHEDULE = Extra("schedule", ("scipy",), "SciPy", "the mechanism opt")
MOUNT = Extra("mount", ("mfusepy",), "mfusepy", "a mounted folder")
EXTRAS = (TORCH, CACHE, OBJECTS, TABLES, REPORT, EXPORT, OFFLOAD, RAY, SCHEDULE, MOUNT)
