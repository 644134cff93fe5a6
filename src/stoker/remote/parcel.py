"""What a remote worker is sent before its first work: the duty, and what of the trainer's process the duty depends on.

Environment variables that the user's code names, the default dtype and the current folder are set before the duty is
unpickled. Nothing else of the trainer's surroundings reaches another host.
"""

import contextlib
import os
import pickle
from collections.abc import Mapping
from importlib import metadata
from typing import Any, NamedTuple

import torch

from stoker.remote.versions import in_words


class Parcel(NamedTuple):
    """Plain values, but for the duty, which is pickled."""

    variables: dict[str, str | None]
    dtype: str
    folder: str
    roots: tuple[str, ...]
    """The folders of the dataset's files; () if its files are not to be asked for."""
    packages: dict[str, str]
    """Versions of the packages that the trainer has imported."""
    duty: bytes


def pack(duty: bytes, variables: Mapping[str, str | None], roots: tuple[str, ...], modules: Mapping[str, Any]) -> bytes:
    """The parcel of this process, as bytes."""
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    return pickle.dumps(tuple(Parcel(dict(variables), dtype, os.getcwd(), roots, _packages(modules), duty)))


def unpack(content: bytes) -> Parcel:
    """What the trainer's host has sent. It knows the secret, and its digest was under a MAC."""
    return Parcel(*pickle.loads(content))


def settle(parcel: Parcel) -> str:
    """Make this process alike. Returns in which packages it differs, in words."""
    for name, value in parcel.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    torch.set_default_dtype(getattr(torch, parcel.dtype))
    with contextlib.suppress(OSError):  # paths of this host may be other ones
        os.chdir(parcel.folder)
    found = []
    for name, version in parcel.packages.items():
        with contextlib.suppress(metadata.PackageNotFoundError):  # if the duty needs it, unpickling says so
            if (here := metadata.version(name)) != version:
                found.append(in_words(name, here, version))
    return "; ".join(found)


def _packages(modules: Mapping[str, Any]) -> dict[str, str]:
    """Versions of the installed packages that modules belong to."""
    known = metadata.packages_distributions()
    names = {name for module in modules if "." not in module for name in known.get(module, ())}
    return {name: metadata.version(name) for name in sorted(names)}
