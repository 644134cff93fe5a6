"""What must be the same on the trainer's host and on those that prepare for it, so that batches are the same."""

import platform
from importlib import metadata

from stoker.host.cores import usable_cores

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


def kind() -> str:
    """On what a worker runs, so that what was measured of one holds for another: processor and cores."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.machine()}, {usable_cores():g} cores"


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """How a remote host differs from this training host, in words for readers on either; "" if it does not."""
    wrong = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return "; ".join(in_words(name, there.get(name, "missing"), here.get(name, "missing")) for name in wrong)


def in_words(name: str, worker: str, training: str) -> str:
    """That something differs."""
    return f"{name} is {worker} on the worker's host and {training} on the training host"
