"""The control groups of this process, version 1 and 2. The limit of every ancestor holds, so all of them are read.

A Slurm job's limit lies two levels above its task, a Kubernetes pod's one above its container. /proc/self/cgroup says
which group a process is in; /proc/self/mountinfo says which part of the tree is mounted, and where. In a cgroup namespace
both paths begin at the namespace. If the group itself is not mounted (its path is the host's, or leads out by `/..`), the
tops of the mounted trees are read.
"""

import functools
from pathlib import Path, PurePosixPath

from stoker.host.mounts import Mount, mounts

_UNIFIED = ""
"""How /proc/self/cgroup writes the controllers of version 2."""


def groups(controller: str, system: Path = Path("/")) -> tuple[Path, ...]:
    """The folders of all groups that bound this process by a controller, each before its parent.

    On a host with both versions there are folders of both, but only one of them has the controller's files.
    """
    try:
        own = (system / "proc/self/cgroup").read_text()
    except OSError:
        return ()
    return _groups(own, controller, system)


@functools.lru_cache(maxsize=16)  # asked each time: a process may be moved to another group
def _groups(own: str, controller: str, system: Path) -> tuple[Path, ...]:
    try:
        mounted = list(mounts(system))
    except OSError:
        return ()
    found: list[Path] = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == _UNIFIED:
            seen = [mount for mount in mounted if mount.kind == "cgroup2"]
        elif controller in controllers.split(","):
            seen = [mount for mount in mounted if mount.kind == "cgroup" and controller in mount.options]
        else:
            continue
        found += _upwards(PurePosixPath(path), seen, system)
    return tuple(dict.fromkeys(found))


def _upwards(path: PurePosixPath, seen: list[Mount], system: Path) -> list[Path]:
    for mount in seen:
        if path.is_relative_to(mount.root):
            below = path.relative_to(mount.root)
            if ".." not in below.parts:
                top = system / mount.point.lstrip("/")
                return [top / one for one in (below, *below.parents)]
    return [system / mount.point.lstrip("/") for mount in seen]
