"""What is in a store, and whether it can be used, found out by plain reads without LMDB.

No process may write meanwhile. The sum that the store holds beside its items must be the sum of their payloads.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from stoker.cache import pages
from stoker.cache.claims import Claims
from stoker.sealed import payload_bytes

USED = b"used"
"""The key of the sum of all payloads, which is written as a NUMBER."""
NUMBER = struct.Struct("<q")
_CONTENT = ("data.mdb", ".segment")
WRITER = b"\xff" * 7
"""Claimed by a process that writes. If it is suspended while writing, others do without the cache, and do not wait."""


class StoreDamagedError(OSError):
    """The store is not what was written."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is in a store."""

    items: int
    payload_bytes: int
    """What the budget counts."""
    occupied_bytes: int
    """What it takes of the file system: whole pages, and those that are free to be used again."""


def occupied_bytes(folder: Path) -> int:
    """The bytes that the store in a folder takes of the file system, or the disk tier."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_blocks * 512 for entry in entries if entry.name.endswith(_CONTENT))
    except OSError:
        return 0


def look_through(folder: Path) -> StoreStats:
    """What is in a store that no process writes to, found out without LMDB. Raises StoreDamagedError if it is damaged."""
    try:
        inside = pages.look_through(folder / "data.mdb", USED)
    except FileNotFoundError:
        if (folder / "lock.mdb").exists():  # which is made with it
            raise StoreDamagedError(f"the cache in {folder} is damaged: data.mdb is missing") from None
        return StoreStats(0, 0, 0)
    except (pages.DamagedError, OSError) as error:
        raise StoreDamagedError(f"the cache in {folder} is damaged: {error}") from error
    used = sum(map(payload_bytes, inside.sizes.tolist()))
    if (inside.set_aside or NUMBER.pack(0)) != NUMBER.pack(used):
        raise StoreDamagedError(f"the cache in {folder} is damaged: its items do not have the size that it says")
    return StoreStats(len(inside.sizes), used, occupied_bytes(folder))


def damage(folder: Path) -> str:
    """What is wrong with a store that others may use, in words; "" if nothing is."""
    writing = Claims(folder / "claims")
    try:
        writing.wait(WRITER)  # no process may write meanwhile
        look_through(folder)
    except StoreDamagedError as error:
        return str(error)
    finally:
        writing.close()
    return ""
