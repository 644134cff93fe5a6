"""What `os.scandir` gives for a folder that Python alone sees."""

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from stoker.mount.within import Within


class ListedEntry:
    """One file or folder, as `os.DirEntry` has it."""

    def __init__(self, within: Within, place: str, above: Any, name: str) -> None:
        self._within, self._place = within, place
        self.name: Any = name if isinstance(above, str) else os.fsencode(name)
        self.path: Any = os.path.join(above, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What `os.stat` says of it."""
        return self._within.status(self._place, self.path)

    def inode(self) -> int:
        """Its number in the folder's file system."""
        return self.stat().st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.stat().st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return not self.is_dir()

    def is_symlink(self) -> bool:
        """There are no links."""
        return False

    is_junction = is_symlink


class Entries:
    """An iterator that can be closed, as `os.scandir` returns it."""

    def __init__(self, within: Within, place: str, above: Any) -> None:
        above = os.fspath(above)
        names = within.listing(place, above)
        self._entries: Iterator[ListedEntry] = (
            ListedEntry(within, os.path.join(place, name), above, name) for name in names
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ListedEntry:
        return next(self._entries)

    def close(self) -> None:
        """Give no more entries."""
        self._entries = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
