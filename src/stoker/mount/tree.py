"""The folders that the names of a source make. Pure: numbers and names, no bytes."""

from collections.abc import Sequence


class Tree:
    """Folders and files by their paths. Paths begin with a slash, and the root is "/"; listings are sorted."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` has the path of each sample, without the first slash."""
        self._numbers: dict[str, int] = {}
        self._folders: dict[str, set[str]] = {"/": set()}
        for number, name in enumerate(names):
            if _is_path(name) and f"/{name}" not in self._folders and self._make(name):
                self._numbers[f"/{name}"] = number
        self.left_out = len(names) - len(self._numbers)
        """How many names are no paths (`a//b`, `../c`), or are those of folders as well."""
        self._listings = {folder: sorted(inside) for folder, inside in self._folders.items()}
        del self._folders

    def _make(self, name: str) -> bool:
        """Make the folders above a file. False if one of them is a file."""
        path, parts = "", name.split("/")
        for part in parts[:-1]:
            path += f"/{part}"
            if path in self._numbers:
                return False
        path = ""
        for part in parts:
            self._folders.setdefault(path or "/", set()).add(part)
            path += f"/{part}"
        return True

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, path: str) -> int | None:
        """The number of a file; None if there is no file of this path."""
        return self._numbers.get(path)

    def listing(self, path: str) -> Sequence[str] | None:
        """What is in a folder; None if there is no folder of this path."""
        return self._listings.get(path)


def _is_path(name: str) -> bool:
    return bool(name) and "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))
