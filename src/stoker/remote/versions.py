"""What must be the same on the trainer's host and on those that prepare for it, so that batches are the same."""

import platform
from importlib import metadata

PACKAGES = ("stoker", "torch", "numpy", "pillow", "torchvision", "torchaudio")


def versions() -> dict[str, str]:
    """Of this host: Python's, and those of the packages that are installed."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """How a remote host differs, in words; "" if it does not."""
    wrong = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return ", ".join(
        f"{name} {there.get(name, 'is missing')} there and {here.get(name, 'is missing')} here" for name in wrong
    )
