"""The file systems that this process sees, and where they are mounted."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system, or a part of one, at a place in the tree."""

    root: str
    """The folder within the file system that is seen at the place."""
    point: str
    kind: str
    options: frozenset[str]
    """Those of the file system; of a cgroup, its controllers are among them."""


def mounts(system: Path = Path("/")) -> Iterator[Mount]:
    """All mounts, in the order in which they were made: a later one hides an earlier one at the same path."""
    for line in (system / "proc/self/mountinfo").read_text().splitlines():
        place, _, what = line.partition(" - ")
        _, _, _, root, point, *_ = place.split()
        kind, _, options = what.split(" ", 2)
        yield Mount(_plain(root), _plain(point), kind, frozenset(options.split(",")))


def _plain(text: str) -> str:
    """Decode a path: the kernel writes spaces and the like as octal numbers."""
    return _ESCAPED.sub(lambda code: chr(int(code[1], 8)), text)


def file_system(path: Path) -> str:
    """The kind of file system that a path is on."""
    best, kind = "", "unknown"
    for mount in mounts():
        if len(mount.point) >= len(best) and path.absolute().is_relative_to(mount.point):
            best, kind = mount.point, mount.kind
    return kind
