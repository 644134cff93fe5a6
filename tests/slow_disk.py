"""A disk that is slow for some processes, where that is permitted: root, and the blkio controller of cgroup v1."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tries import until


@contextlib.contextmanager
def slow_disk(folder: Path, bytes_per_s: int) -> Iterator[Callable[[], None] | None]:
    """What a process does to get so little from the disk of a folder, with all that it starts; None if it cannot."""
    group = Path(f"/sys/fs/cgroup/blkio/stoker-test-{os.getpid()}")
    device = os.stat(folder).st_dev

    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        group.mkdir()
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {bytes_per_s}")
        is_slow = True
    except OSError:
        is_slow = False
    try:
        yield join if is_slow else None
    finally:
        if group.exists():
            until(lambda: not (group / "cgroup.procs").read_text())  # the workers of a process that has ended
            group.rmdir()
