"""Where the loaders of a user on a host publish: a file for each, locked for as long as its process lives.

    HOME/loaders/TOKEN         HOME: see `own`

Everything there is its owner's alone, and a folder that is not is refused. A record is dead when its lock is free, or when
its process is gone though a child still holds the lock that it inherited. The dead are swept by whoever comes next.
`STOKER_TOP=0` turns publishing off; `STOKER_TOP=DIR` is another folder.
"""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from stoker import own
from stoker.live import process
from stoker.live.record import SIZE, Facts, Read, Record, Seen, facts_bytes, read_facts, read_record

_SWEEP_EVERY_S = 60.0
_TRIES = 100
_swept_at = -_SWEEP_EVERY_S


def place() -> Path | None:
    """The folder, whether it is there or not; None if publishing is turned off."""
    chosen = os.environ.get("STOKER_TOP", "")
    if chosen == "0":
        return None
    if chosen not in ("", "1"):
        return Path(chosen).absolute() / "loaders"
    return own.home() / "loaders"


def check(folder: Path) -> None:
    """Refuse a folder that others may see or change, or the one above it."""
    for one in (folder.parent, folder):
        own.check(one)


def publish(facts: Facts) -> Record | None:
    """A new record, or None where there is no place for one: a loader does without."""
    global _swept_at
    try:
        folder = place()
        if folder is None:
            return None
        for one in (folder.parent, folder):
            own.make(one)
        if time.monotonic() - _swept_at > _SWEEP_EVERY_S:
            _swept_at = time.monotonic()
            for _ in _living(folder):
                pass
        return _create(folder, facts)
    except OSError:
        return None


def _create(folder: Path, facts: Facts) -> Record:
    """A record. Before it is locked it is one of the dead: if it is swept just then, it is made again."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return _create_once(folder, facts)
    raise FileNotFoundError(folder)


def _create_once(folder: Path, facts: Facts) -> Record:
    token = secrets.token_hex(8)
    path, unseen = folder / token, folder / f".{token}"
    descriptor = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.posix_fallocate(descriptor, 0, SIZE)  # a full tmpfs is an error here, and a fatal signal later
        os.pwrite(descriptor, facts_bytes(facts), 0)
        unseen.rename(path)  # nobody sees it before it is locked
        return Record(path, descriptor)
    except OSError:
        os.close(descriptor)
        for left in (unseen, path):
            left.unlink(missing_ok=True)
        raise


def loaders() -> dict[str, Seen]:
    """What the loaders of this user on this host have published, by their tokens. Files of the dead are swept."""
    folder = place() or own.home() / "loaders"
    if not folder.is_dir():
        return {}
    check(folder)
    found = {}
    for token, facts, read in _living(folder):
        seen = read_record(read, facts)
        if seen is not None:
            found[token] = seen
    return found


def _living(folder: Path) -> Iterator[tuple[str, Facts, Read]]:
    """The records of loaders that live, each open until the next is asked for. The others are removed."""
    namespace = process.namespace()
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError, ValueError), _opened(path) as descriptor:
            is_locked = _is_locked(descriptor)
            if not is_locked:
                path.unlink()
                continue
            if path.name.startswith("."):  # it is just being made
                continue
            read = partial(_read, descriptor)
            facts = read_facts(read)
            if facts.namespace == namespace and not process.is_alive(facts.pid, facts.started):
                path.unlink()
                continue
            yield path.name, facts, read


def _read(descriptor: int, length: int, offset: int) -> bytes:
    return os.pread(descriptor, length, offset)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
