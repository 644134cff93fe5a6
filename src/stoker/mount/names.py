"""The files below an address, as a source and the name of each within it."""

import os

from stoker.errors import ConfigError
from stoker.source.files import Files
from stoker.source.opening import open_source
from stoker.source.reading import Named, Source

_FILE = "file://"


class Listed:
    """A source, with names for its samples."""

    def __init__(self, source: Source, names: list[str]) -> None:
        self.source = source
        self.names = names


def listed(address: str) -> Listed:
    """List what is below an address. Raises ConfigError."""
    if address.startswith(_FILE) or "://" not in address:
        return _listed_folder(os.path.abspath(address.removeprefix(_FILE)))
    source = open_source(address)
    tell = getattr(source, "address", None)
    if tell is None or not isinstance(source, Named):
        raise ConfigError(f"{address} cannot be mounted: it has no names for what is in it")
    begin = len(source.name.rstrip("/")) + 1
    return Listed(source, [tell(number)[begin:] for number in range(len(source))])


def _listed_folder(folder: str) -> Listed:
    if not os.path.isdir(folder):
        raise ConfigError(f"there is no folder {folder} to mount")
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    paths = sorted(path for path in found if os.path.isfile(path))
    if not paths:
        raise ConfigError(f"there are no files in the folder {folder}")
    return Listed(Files(paths), [path[len(folder.rstrip("/")) + 1 :] for path in paths])
