"""The files below an address, as a source, with the name, size and version of each within it."""

import contextlib
import os
import stat
from array import array
from collections.abc import Iterable

from stoker.errors import ConfigError
from stoker.source.addresses import has_magic, local_path, scheme_of
from stoker.source.files import Files, file_version
from stoker.source.objects import Objects

_VERSION_BYTES = 32


class Listed:
    """A source, with names and sizes of its samples, as they were when it was listed."""

    def __init__(self, source: Files | Objects, names: list[str], sizes: Iterable[int], versions: bytes = b"") -> None:
        self.source = source
        self.names = names
        self.sizes = array("q", sizes)
        self._versions = versions

    def version(self, number: int) -> bytes:
        """Of one sample. Storage is not asked again."""
        begin = _VERSION_BYTES * number
        return self._versions[begin : begin + _VERSION_BYTES] or self.source.version(number)


def listed(address: str) -> Listed:
    """List what is below an address. Raises ConfigError."""
    if "://" not in address:
        return _listed_folder(os.path.abspath(address))
    if scheme_of(address) == "file":
        return _listed_folder(local_path(address))
    source = Objects(address if has_magic(address) else f"{address.rstrip('/')}/**")
    source.warns_of_changes = False  # here it is an error
    begin, numbers = len(source.name) + 1, range(len(source))
    return Listed(source, [source.address(number)[begin:] for number in numbers], source.sizes(numbers))


def _listed_folder(folder: str) -> Listed:
    if not os.path.isdir(folder):
        raise ConfigError(f"there is no folder {folder} to mount")
    found: dict[str, os.stat_result] = {}
    for path in sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found[path] = status
    if not found:
        raise ConfigError(f"there are no files in the folder {folder}")
    names = [path[len(folder.rstrip("/")) + 1 :] for path in found]
    versions = b"".join(map(file_version, found.values()))
    return Listed(Files(list(found)), names, (status.st_size for status in found.values()), versions)
