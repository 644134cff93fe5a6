"""Where the loaders of a user on a host publish: a file for each, locked for as long as its process lives.

    HOME/loaders/TOKEN         HOME: see `host.folders`

Only the owner can open what is there; any other folder is refused. A record is dead when its lock is free, or when its
process is gone, even if a child still holds the inherited lock. The next process that looks removes dead records.
`STOKER_TOP=0` turns publishing off; `STOKER_TOP=DIR` is another folder.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from stoker.host import folders, process
from stoker.live.record import RECORD_BYTES, Facts, Read, Record, Seen, facts_bytes, read_facts, read_record

_SWEEP_EVERY_S = 60.0
_swept_at = -_SWEEP_EVERY_S


def place() -> Path | None:
    """The folder, whether it is there or not; None if publishing is turned off."""
    chosen = os.environ.get("STOKER_TOP", "")
    if chosen == "0":
        return None
    if chosen not in ("", "1"):
        return Path(chosen).absolute() / "loaders"
    return folders.home() / "loaders"


def publish(facts: Facts) -> Record | None:
    """A new record; None where none can be made: a loader does without."""
    global _swept_at
    try:
        folder = place()
        if folder is None:
            return None
        folders.make(folder.parent, folder)
        if time.monotonic() - _swept_at > _SWEEP_EVERY_S:
            _swept_at = time.monotonic()
            for _ in _living(folder):
                pass
        return Record(*folders.add_entry(folder, partial(_fill, facts)))
    except folders.NotOwnError as error:
        if "STOKER_TOP" in os.environ:
            warnings.warn(f"`stoker top` will not see this loader: {error}", stacklevel=2)
        return None
    except OSError:
        return None


def _fill(facts: Facts, descriptor: int) -> None:
    os.posix_fallocate(descriptor, 0, RECORD_BYTES)  # a full tmpfs is an error here, and a fatal signal later
    os.pwrite(descriptor, facts_bytes(facts), 0)


def loaders() -> dict[str, Seen]:
    """What the loaders of this user on this host have published, by their tokens. Files of the dead are swept."""
    folder = place() or folders.home() / "loaders"
    if folder.parent.exists():
        folders.check(folder.parent)  # or else loaders do without, and nobody learns why
    if not folder.is_dir():
        return {}
    folders.check(folder)
    found = {}
    for token, facts, from_record in _living(folder):
        seen = read_record(from_record, facts)
        if seen is not None:
            found[token] = seen
    return found


def _living(folder: Path) -> Iterator[tuple[str, Facts, Read]]:
    """The records of loaders that live, each open until the next is asked for. The others are removed."""
    namespace = process.namespace()
    for path, descriptor in folders.entries(folder):
        with contextlib.suppress(OSError, ValueError):
            from_record = partial(read, descriptor)
            facts = read_facts(from_record)
            if facts.namespace == namespace and not process.is_alive(facts.pid, facts.started):
                path.unlink()
            else:
                yield path.name, facts, from_record


def open_record(token: str) -> int:
    """A descriptor of a record, with which it can be read even after it was removed. Raises OSError if there is none."""
    return os.open((place() or folders.home() / "loaders") / token, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def read(descriptor: int, length: int, offset: int) -> bytes:
    """So many bytes of an open record."""
    return os.pread(descriptor, length, offset)
