"""Which folders have disk tiers of this user: a list in ${XDG_CACHE_HOME:-~/.cache}/stoker, so that they can be shown.

A folder that is not there any more, or not mounted, is left out. Without the list nothing is lost but the showing.
"""

import contextlib
import os
from pathlib import Path

from stoker.host.small_files import read_small, write_small


def remember(directory: Path) -> None:
    """Note that a folder has a disk tier."""
    with contextlib.suppress(OSError):
        known = _listed()
        if str(directory) not in known:
            _path().parent.mkdir(parents=True, exist_ok=True)
            fresh = _path().with_suffix(f".{os.getpid()}")
            write_small(fresh, os.fsencode("\n".join([*known, str(directory)])))
            fresh.rename(_path())


def remembered() -> list[Path]:
    """The folders that are there."""
    return [Path(line) for line in _listed() if Path(line).is_dir()]


def _listed() -> list[str]:
    with contextlib.suppress(OSError):
        return [line for line in os.fsdecode(read_small(_path())).split("\n") if line]
    return []


def _path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stoker", "disks.txt")
