"""The caches of a user on a host: found by what they hold, shared by whoever asks for the same, kept when all have gone.

    FOLDER/DIGEST/about.json     what is cached there
    FOLDER/DIGEST/data.mdb       the store
    FOLDER/DIGEST/claims         who reads what right now
    FOLDER/DIGEST/jobs/*         one file for each job that uses it, locked for as long as it lives; its budget is in it

FOLDER is on tmpfs unless the user names another, and everything in it is its owner's alone. Whether a job lives is what the
kernel says: its lock is free when its processes are gone. Caches that no job uses are removed as a whole, the one that was
used longest ago first, when another needs the memory.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.cache import store
from stoker.cache.store import RESERVE_BYTES, StoreStats
from stoker.errors import ConfigError
from stoker.memory import file_system, headroom_bytes
from stoker.units import format_bytes

_TMPFS = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Found:
    """A cache that was found."""

    name: str
    folder: Path
    stats: StoreStats
    jobs: int
    """How many jobs use it now."""
    used_at: float
    """When a job last came to it, in seconds since 1970."""
    is_private: bool
    """Whether it is of no use when its job has ended."""


class Membership:
    """A job's use of a cache. It ends with the process that joined, or by `close`."""

    def __init__(self, folder: Path, budget_bytes: int, *, is_private: bool) -> None:
        self.folder = folder
        jobs = folder / "jobs"
        token = secrets.token_hex(8)
        path, unseen = jobs / token, jobs / f".{token}"
        descriptor = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, str(budget_bytes).encode())
        unseen.rename(path)  # nobody sees it before it is locked
        self.close = weakref.finalize(self, _leave, path, descriptor, os.getpid(), folder if is_private else None)


def _leave(path: Path, descriptor: int, owner: int, private: Path | None) -> None:
    """The job needs the cache no more, and nobody needs a private one."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        path.unlink()
    os.close(descriptor)
    if private is not None:
        store.close(private)
        shutil.rmtree(private, ignore_errors=True)


class Budget:
    """The largest budget among the jobs that live, looked up anew whenever a job has come or gone."""

    def __init__(self, folder: Path) -> None:
        self._jobs = folder / "jobs"
        self._seen = -1
        self._bytes = 0

    def bytes(self) -> int:
        """What holds now. Raises FileNotFoundError when the cache has been removed."""
        changed = os.stat(self._jobs).st_mtime_ns
        if changed != self._seen:
            self._bytes = max(_live_budgets(self._jobs), default=0)
            self._seen = changed
        return self._bytes


def _live_budgets(jobs: Path) -> list[int]:
    """The budgets of jobs that live. Files of those that do not are swept."""
    budgets = []
    for path in jobs.iterdir():
        if path.name.startswith("."):
            continue
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                budgets.append(int(file.read()))
            else:
                path.unlink()
    return budgets


class Shelf:
    """All caches in one folder."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.folder = _TMPFS / f"stoker-{os.getuid()}" if directory is None else Path(directory).absolute() / "stoker-cache"

    def join(self, name: str, budget_bytes: int, *, is_private: bool = False) -> Membership:
        """Use the cache of a name; make it if there is none. Raises OSError where that is not possible."""
        if is_private:
            name = f"{name} (of one job, {secrets.token_hex(4)})"
        store.check_installed()
        self._make()
        with self._locked():
            folder = self.folder / hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
            self._make_room(folder, budget_bytes)
            if not (folder / "about.json").exists():
                (folder / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
                (folder / "claims").touch(0o600)
                unseen = folder / "about.new"
                unseen.touch(0o600)
                unseen.write_text(json.dumps({"version": 1, "name": name, "private": is_private}))
                unseen.rename(folder / "about.json")
            os.utime(folder / "about.json")
            _live_budgets(folder / "jobs")
            return Membership(folder, budget_bytes, is_private=is_private)

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700, parents=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self.folder} is not a folder of this user alone")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, folder: Path, budget_bytes: int) -> None:
        """Remove caches that nobody uses until the budget can be held; an error that says how much can be, if it cannot."""
        others = [other for other in self._found() if other.folder != folder and not other.jobs]
        for other in [other for other in others if other.is_private]:
            self._remove(other)
        idle = sorted((other for other in others if not other.is_private), key=lambda other: other.used_at)
        room = self._room() + _occupied(folder)
        most = room + sum(other.stats.occupied_bytes for other in idle)
        if budget_bytes > most:
            raise ConfigError(
                f"a cache of {format_bytes(budget_bytes)} cannot be held: {self.folder} and the memory of this process "
                f"have room for {format_bytes(max(0, most))}. Ask for less, or for another folder (cache_dir)."
            )
        while budget_bytes > room and idle:
            self._remove(idle.pop(0))
            room = self._room() + _occupied(folder)

    def _room(self) -> int:
        place = os.statvfs(self.folder)
        free = place.f_bavail * place.f_frsize
        if file_system(self.folder) in ("tmpfs", "ramfs"):  # whose pages are charged to whoever touches them
            free = min(free, headroom_bytes() - RESERVE_BYTES)
        return free

    def caches(self) -> list[Found]:
        """All of them, the one used last first."""
        if not self.folder.is_dir():
            return []
        self._make()
        with self._locked():
            return sorted(self._found(), key=lambda found: -found.used_at)

    def _found(self) -> list[Found]:
        found = []
        for about in self.folder.glob("*/about.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                document = json.loads(about.read_text())
                stats = StoreStats(0, 0, 0)
                if (about.parent / "data.mdb").exists():
                    with store.visiting(about.parent) as opened:
                        stats = opened.stats()
                jobs = len(_live_budgets(about.parent / "jobs"))
                found.append(Found(document["name"], about.parent, stats, jobs, about.stat().st_mtime, document["private"]))
        return found

    def remove(self, found: Found) -> None:
        """Remove one. Jobs that use it go on from storage."""
        with self._locked():
            self._remove(found)

    def _remove(self, found: Found) -> None:
        store.close(found.folder)
        (found.folder / "about.json").unlink(missing_ok=True)
        shutil.rmtree(found.folder, ignore_errors=True)


def _occupied(folder: Path) -> int:
    try:
        return (folder / "data.mdb").stat().st_blocks * 512
    except OSError:
        return 0
