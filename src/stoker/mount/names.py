"""The files below an address, as a source and the name of each within it."""

import os

from stoker.errors import ConfigError
from stoker.source.addresses import has_magic, local_path, scheme_of
from stoker.source.files import Files
from stoker.source.objects import Objects
from stoker.source.reading import Source


class Listed:
    """A source, with names for its samples."""

    def __init__(self, source: Source, names: list[str]) -> None:
        self.source = source
        self.names = names


def listed(address: str) -> Listed:
    """List what is below an address. Raises ConfigError."""
    if "://" not in address:
        return _listed_folder(os.path.abspath(address))
    if scheme_of(address) == "file":
        return _listed_folder(local_path(address))
    source = Objects(address if has_magic(address) else f"{address.rstrip('/')}/**")
    begin = len(source.name) + 1
    return Listed(source, [source.address(number)[begin:] for number in range(len(source))])


def _listed_folder(folder: str) -> Listed:
    if not os.path.isdir(folder):
        raise ConfigError(f"there is no folder {folder} to mount")
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    paths = sorted(path for path in found if os.path.isfile(path))
    if not paths:
        raise ConfigError(f"there are no files in the folder {folder}")
    return Listed(Files(paths), [path[len(folder.rstrip("/")) + 1 :] for path in paths])
