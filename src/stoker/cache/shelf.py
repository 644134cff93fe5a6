"""The caches of a user on a host. Jobs find a cache by the name of its data and share it; it stays when all jobs have gone.

    FOLDER/DIGEST/about.json     what is cached there
    FOLDER/DIGEST/data.mdb       the store
    FOLDER/DIGEST/claims         who reads what right now
    FOLDER/DIGEST/jobs/*         one file for each job that uses it, locked for as long as it lives; its budget is in it

FOLDER is the user's home (see `host.folders`), or in a place that the user names. Only its owner can open what is in it.
The kernel says whether a job lives: its lock is free when its processes are gone. When a cache needs memory, others that no
job uses are removed as a whole, the one that was used longest ago first.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.cache import inspection, rebuilding, stores
from stoker.cache.inspection import StoreDamagedError, StoreStats
from stoker.cache.store import RESERVE_BYTES, StoreBusyError, StoreFullError
from stoker.errors import ConfigError
from stoker.extras import CACHE
from stoker.host import folders, process
from stoker.host.headroom import headroom_bytes
from stoker.host.locks import alone, close_lock
from stoker.host.mounts import file_system
from stoker.host.small_files import read_small, write_small
from stoker.units import format_bytes

_LOOK_AGAIN_S = 5.0
_DIGEST = re.compile("[0-9a-f]{32}")
_VERSION = 2
MEMORY, DISK = "memory", "disk"
"""The tiers: bytes in a store, which is worth nothing after another boot, or in segments, which stay."""


@dataclass(frozen=True, slots=True)
class ShelvedCache:
    """A cache of the shelf: its folder, name and contents."""

    name: str
    folder: Path
    stats: StoreStats
    jobs: int
    """How many jobs use it now."""
    used_at: float
    """When a job last came to it, in seconds since 1970."""
    is_private: bool
    """Whether it is of no use when its job has ended."""
    tier: str = MEMORY


class CacheUse:
    """A job's use of a cache. It ends with the process that joined, or by `close`."""

    def __init__(self, folder: Path, budget_bytes: int, *, is_private: bool, damage: str = "") -> None:
        self.folder = folder
        self.damage = damage
        """What was wrong with what was there before, if it was."""
        path, held = folders.add_entry(folder / "jobs", lambda entry: os.write(entry, str(budget_bytes).encode()))
        self.close = weakref.finalize(self, _leave, path, held, os.getpid(), folder if is_private else None)


def _leave(path: Path, descriptor: int, owner: int, private: Path | None) -> None:
    """Leave the cache, and remove it if it is private."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        path.unlink()
    close_lock(descriptor)
    if private is not None:
        shutil.rmtree(private, ignore_errors=True)


class Budget:
    """The largest budget among the jobs that live, looked up anew when a job has come or gone, and every few seconds."""

    def __init__(self, folder: Path) -> None:
        self._jobs = folder / "jobs"
        self._seen = -1
        self._look_at = 0.0
        self._bytes = 0

    def bytes(self) -> int:
        """The budget that holds now. Raises FileNotFoundError when the cache has been removed."""
        changed = os.stat(self._jobs).st_mtime_ns
        if changed != self._seen or time.monotonic() > self._look_at:  # a killed job does not change the folder
            self._bytes = max(_live_budgets(self._jobs), default=0)
            self._seen, self._look_at = changed, time.monotonic() + _LOOK_AGAIN_S
        return self._bytes


def _live_budgets(jobs: Path) -> list[int]:
    """The budgets of living jobs. Files of dead ones are removed."""
    budgets = []
    for _, descriptor in folders.entries(jobs):
        with contextlib.suppress(OSError, ValueError):
            budgets.append(int(os.read(descriptor, 64)))
    return budgets


class Shelf:
    """All caches in one folder."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.folder = folders.home() if directory is None else Path(directory).resolve() / f"stoker-{os.getuid()}"
        self._is_home = directory is None

    def join(self, name: str, budget_bytes: int, *, is_private: bool = False, tier: str = MEMORY) -> CacheUse:
        """Join the cache of a name, which is made if there is none. Raises OSError where that is not possible."""
        if is_private:
            name = f"{name} (of one job, {secrets.token_hex(4)})"
        CACHE.check()
        self._make()
        with alone(self.folder / "lock"):
            folder = self.folder / _digest(name, tier)
            damage = self._distrust(folder)
            self._make_room(folder, budget_bytes, tier)
            if not (folder / "about.json").exists():
                (folder / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
                (folder / "claims").touch(0o600)
                about = {"version": _VERSION, "name": name, "private": is_private, "boot": process.boot(), "tier": tier}
                write_small(folder / "about.new", json.dumps(about).encode())
                (folder / "about.new").rename(folder / "about.json")
            os.utime(folder / "about.json")
            if not _live_budgets(folder / "jobs"):
                if tier == DISK:
                    damage = rebuilding.prepare(folder, budget_bytes)
                else:
                    _shrink(folder, budget_bytes)
            return CacheUse(folder, budget_bytes, is_private=is_private, damage=damage)

    def _distrust(self, folder: Path) -> str:
        """Remove a cache that no job uses if it is damaged. Returns what is wrong with it."""
        found = self._look_at(folder)
        if found is None or found.jobs:
            return ""
        damage = ""
        if found.tier == DISK and not found.is_private:
            return ""  # it is looked at when its index is opened
        if not found.is_private:
            try:
                inspection.look_through(folder)
                return ""
            except StoreDamagedError as error:
                damage = str(error)
        elif found.name == folder.name or not (folder / "jobs").is_dir():
            damage = f"the cache in {folder} is damaged: files of it are missing, or make no sense"
        self._remove(found)
        return damage

    def _make(self) -> None:
        if self._is_home:
            self.folder = folders.make_home()
        else:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            folders.make(self.folder)

    def _make_room(self, folder: Path, budget_bytes: int, tier: str) -> None:
        """Remove unused caches until the budget fits. If it never does, raise a ConfigError that says so.

        A disk may be fuller than it was, or become emptier: there only what can never fit is refused.
        """
        self._sweep()
        unused = sorted((found for found in self._found() if not found.jobs), key=lambda found: found.used_at)
        idle = [found for found in unused if found.folder != folder]
        room = self._room() + inspection.occupied_bytes(folder)
        most = room + sum(found.stats.occupied_bytes for found in idle)
        if tier == DISK:
            place = os.statvfs(self.folder)
            most = max(most, place.f_blocks * place.f_frsize)
        if budget_bytes > most:
            places, option = {
                MEMORY: (f"{self.folder} and the memory of this process have", "cache_dir"),
                DISK: (f"the file system of {self.folder} has", "cache_disk"),
            }[tier]
            raise ConfigError(
                f"a cache of {format_bytes(budget_bytes)} cannot be held: {places} room for {format_bytes(max(0, most))}. "
                f"Ask for less, or for another folder ({option})."
            )
        while budget_bytes > room and idle:
            self._remove(idle.pop(0))
            room = self._room() + inspection.occupied_bytes(folder)

    def _room(self) -> int:
        place = os.statvfs(self.folder)
        free = place.f_bavail * place.f_frsize
        if file_system(self.folder) in ("tmpfs", "ramfs"):  # their pages count as memory of the process that touches them
            free = min(free, headroom_bytes() - RESERVE_BYTES)
        return free

    def caches(self, *, looks_inside: bool = True) -> list[ShelvedCache]:
        """All caches, the one used last first. Private caches of killed jobs are removed."""
        if not self.folder.is_dir():
            return []
        self._make()
        with alone(self.folder / "lock"):
            self._sweep()
            caches = self._found()
            if looks_inside:
                caches = [replace(found, stats=_stats(found)) for found in caches]
            return sorted(caches, key=lambda found: -found.used_at)

    def sweep(self) -> None:
        """Remove private caches of jobs that were killed."""
        if self.folder.is_dir():
            self._make()
            with alone(self.folder / "lock"):
                self._sweep()

    def _sweep(self) -> None:
        for found in self._found():
            if found.is_private and not found.jobs:
                self._remove(found)

    def _found(self) -> list[ShelvedCache]:
        """All caches in the folder, without opening them: files from before a reboot may hold anything."""
        folders = [entry for entry in self.folder.iterdir() if _DIGEST.fullmatch(entry.name)]
        return [found for found in map(self._look_at, folders) if found is not None]

    def _look_at(self, folder: Path) -> ShelvedCache | None:
        try:
            used_at = _used_at(folder)
        except OSError:
            return None
        live = 0
        name, is_private, tier = _about(folder)
        try:
            live = len(_live_budgets(folder / "jobs"))
        except OSError:  # half made, or half removed
            is_private = True
        stats = StoreStats(0, 0, inspection.occupied_bytes(folder))
        return ShelvedCache(name, folder, stats, live, used_at, is_private, tier)

    def remove(self, found: ShelvedCache) -> None:
        """Remove a cache. Jobs that use it go on from storage."""
        with alone(self.folder / "lock"):
            self._remove(found)

    def _remove(self, found: ShelvedCache) -> None:
        stores.forget(found.folder)
        with contextlib.suppress(OSError):
            (found.folder / "about.json").unlink()
        if found.folder.is_dir() and not found.folder.is_symlink():
            shutil.rmtree(found.folder, ignore_errors=True)
        else:
            found.folder.unlink(missing_ok=True)


def _digest(name: str, tier: str) -> str:
    """The name of a cache's folder. It depends on the format, because jobs of several versions may run at once."""
    kind = b"" if tier == MEMORY else tier.encode()
    return hashlib.blake2b(os.fsencode(name), digest_size=16, salt=bytes([_VERSION]), person=kind).hexdigest()


def _stats(found: ShelvedCache) -> StoreStats:
    """What is in a cache. If it is damaged or was never used, only the bytes that it occupies."""
    if found.tier == DISK:
        with contextlib.suppress(OSError):
            return rebuilding.stats(found.folder)
        return found.stats
    if (found.folder / "data.mdb").exists():
        with contextlib.suppress(OSError):
            if not found.jobs:
                return inspection.look_through(found.folder)
            with stores.visiting(found.folder) as opened:
                return opened.stats()
    return found.stats


def _shrink(folder: Path, budget_bytes: int) -> None:
    """Shrink a cache that no job uses to a budget. If that fails, empty it."""
    if not (folder / "data.mdb").exists():
        return
    try:
        with stores.visiting(folder) as opened:
            if opened.payload_bytes() > budget_bytes:
                opened.shrink(budget_bytes)
    except (OSError, StoreFullError, StoreBusyError):
        stores.forget(folder)
        for name in ("data.mdb", "lock.mdb"):
            (folder / name).unlink(missing_ok=True)


def _about(folder: Path) -> tuple[str, bool, str]:
    """The name of the data in a folder, whether the cache is private, and its tier."""
    try:
        document = json.loads(read_small(folder / "about.json"))
        is_same = document["version"] == _VERSION
        tier = str(document.get("tier", MEMORY))
        # After a reboot, bytes that were not synced may be anything. A disk tier finds out what was.
        is_old = tier != DISK and document["boot"] != process.boot()
        return str(document["name"]), not is_same or bool(document["private"]) or is_old, tier
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # half made, half removed, or of another version
        return folder.name, True, MEMORY


def _used_at(folder: Path) -> float:
    about = folder / "about.json"
    return (about if about.exists() else folder).lstat().st_mtime
