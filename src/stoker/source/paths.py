"""Finding files, and keeping a million of their paths small.

The order is that of torchvision's ImageFolder: by folder, then by name, as Python sorts text.
"""

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, eq=False)
class Paths(Sequence[str]):
    """Absolute paths, as text for those who ask; kept as bytes, without the folder that they share."""

    folder: bytes
    joined: bytes
    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, folder: str, names: Iterable[str]) -> "Paths":
        """From the paths relative to a folder, which ends with a slash."""
        encoded = [os.fsencode(name) for name in names]
        bounds = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(name) for name in encoded], out=bounds[1:])
        return cls(os.fsencode(folder), b"".join(encoded), bounds)

    def encoded(self, number: int) -> bytes:
        """One path, as the system calls take it; not checked."""
        return self.folder + self.name(number)

    def name(self, number: int) -> bytes:
        """One path below the folder that all share."""
        return self.joined[self.bounds[number] : self.bounds[number + 1]]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, which: int) -> str: ...

    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        found = range(len(self))[which]
        if isinstance(found, range):
            return [os.fsdecode(self.encoded(number)) for number in found]
        return os.fsdecode(self.encoded(found))


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that all are in, with a slash at its end."""
    return os.path.join(os.path.commonpath([os.path.dirname(path) for path in (min(paths), max(paths))]), "")


def absolute(path: PathLike) -> str:
    """An absolute path of the same file: what lies behind `link/..` is not what the text says."""
    text = os.fspath(path)
    return os.path.realpath(text) if os.pardir in text else os.path.abspath(text)


def matched(text: str) -> list[str]:
    """The file of this path, or the files that match this glob."""
    if os.path.isfile(text):
        return [absolute(text)]
    if not glob.has_magic(text):
        raise ConfigError(f"no files at {text!r}: there is no such file or folder (looked for {os.path.abspath(text)})")
    matches = sorted(glob.glob(text, recursive=True))
    found = [absolute(path) for path in matches if os.path.isfile(path)]
    if not found:
        what = f"only {len(matches)} folders, perhaps add '/*'" if matches else "nothing"
        raise ConfigError(f"no files match {text!r} (looked in {os.getcwd()}): {what}")
    return found


def listed(folder: str) -> tuple[list[str], list[str]]:
    """The names of the folders and files in a folder. A link to nothing is a file: reading it will say which it is."""
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path)):
                files.append(entry.name)
    return sorted(folders), sorted(files)


def walked(top: str) -> list[str]:
    """All files below a folder, by folder, then by name; links are followed, but not in circles."""
    found: list[tuple[str, list[str]]] = []
    ahead = [(top, frozenset([_identity(os.path.dirname(top))]))]
    while ahead:
        folder, above = ahead.pop()
        itself = _identity(folder)
        if itself in above:
            continue
        folders, files = listed(folder)
        found.append((folder, files))
        ahead += [(os.path.join(folder, name), above | {itself}) for name in folders]
    return [os.path.join(folder, name) for folder, names in sorted(found) for name in names]


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
