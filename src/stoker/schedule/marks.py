"""What a lease and the daemon tell each other: files in a folder that both see.

    JOB/lock               held by those who run the job, from before its script starts until all its processes have ended
    JOB/job.json           what to run, and how
    JOB/saved/             the job's checkpoints
    JOB/output             what it prints, of all its leases
    JOB/leases/N/void      by the daemon: this lease must not start any more
    JOB/leases/N/ready     by the lease: its script runs, and signals are heard
    JOB/leases/N/progress  by the lease: batches so far
    JOB/leases/N/exit      by the lease: the code that its script ended with

A lease starts its script only with the job's lock, and only if it has neither `void`, `ready` nor `exit`. The daemon
writes `void`, with the lock, where Slurm does not know a lease. So a job never runs twice at a time, and whatever Slurm
has forgotten or starts again: each lease runs at most once.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.host.locks import close_lock, open_lock, take

SAVED = 75
"""The exit code of a script that was saved, and is to go on later."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The folder of one lease."""

    job: Path
    number: int

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.job / "leases" / str(self.number)

    def make(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return (self.folder / name).exists()

    def read(self, name: str) -> dict[str, Any] | None:
        """What a file says; None if it is not there."""
        try:
            found = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, document: Mapping[str, Any], *, lasting: bool = True) -> None:
        """Write a file, whole or not at all; with `lasting`, it outlives a power cut."""
        write_document(self.folder / name, document, lasting=lasting)


def write_document(path: Path, document: Mapping[str, Any], *, lasting: bool = True) -> None:
    """Write a file of this user alone, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(document, file)
        file.flush()
        if lasting:
            os.fsync(file.fileno())
    partial.rename(path)
    if lasting:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold a lock, if nobody has it; tells whether nobody had."""
    descriptor = open_lock(path, os.O_RDWR | os.O_CREAT)
    try:
        yield take(descriptor)
    finally:
        close_lock(descriptor)


def steps_saved(job: Path) -> int:
    """The iterations of a job's newest checkpoint; 0 if it has none."""
    names = (path.stem.partition("-")[0] for path in (job / "saved").glob("*-*.json"))
    return max((int(name) for name in names if name.isdigit()), default=0)
