"""A disk tier that no job uses is looked at before the next one opens it: what is in it can be believed, and fits.

After another boot, or where its index is damaged, the index is made anew from the segments. It is made anew, too, without
the segments beyond the budget, where a job has a smaller one, and without those that hold mostly what nobody asks for
any more. Whatever happens meanwhile: an index that is half made says so, and the next look makes it again.
"""

import contextlib
from pathlib import Path

from stoker.cache import inspection, stores
from stoker.cache.claims import Claims
from stoker.cache.inspection import StoreDamagedError, StoreStats
from stoker.cache.locations import APPENDING, FILES, Locations, Tail
from stoker.cache.segments import FIRST, FoundItem, Segment, SegmentDamagedError, payloads_bytes, segments
from stoker.host import process
from stoker.host.small_files import read_small, write_small

_TOGETHER = 4096
_BOOT = "boot"
"""The file that says which boot the index is of. It is removed while the index is made."""


def prepare(folder: Path, budget_bytes: int) -> str:
    """Make a disk tier ready for the next job. No other process uses it. Returns what was wrong with it, or ""."""
    damage = ""
    if is_of_this_boot(folder):
        try:
            items = inspection.look_through(folder).items
            if not segments(folder) or (items and _is_fitting(folder, budget_bytes)):
                return ""
        except StoreDamagedError as error:
            damage = str(error)
    writing = Claims(folder / "claims")
    writing.wait(APPENDING)  # a worker whose job has died may still write
    try:
        _rebuild(folder, budget_bytes)
    finally:
        writing.close()
    return damage


def stats(folder: Path) -> StoreStats:
    """What is in a disk tier that others may use. After another boot, what is certain to be. Raises OSError."""
    occupied = inspection.occupied_bytes(folder)
    if not is_of_this_boot(folder):
        tables = [Segment(folder, number).table() or [] for number in segments(folder)]
        return StoreStats(sum(map(len, tables)), sum(map(payloads_bytes, tables)), occupied)
    locations = Locations(folder)
    try:
        found = locations.stats()
    finally:
        locations.close()
        stores.close_unused()
    return StoreStats(found.items, found.payload_bytes, occupied)


def is_of_this_boot(folder: Path) -> bool:
    """Whether a disk tier has an index that was made since the host was started."""
    try:
        return read_small(folder / _BOOT) == process.boot().encode()
    except OSError:
        return False


def _is_fitting(folder: Path, budget_bytes: int) -> bool:
    locations = Locations(folder)
    try:
        is_wasting = bool(_mostly_dead(folder, locations))
        return locations.tail().written_bytes <= budget_bytes and not is_wasting
    finally:
        locations.close()
        stores.close_unused()


def _mostly_dead(folder: Path, locations: Locations) -> list[int]:
    """The segments that are dead for more than half: nobody asks for that any more, or it cannot be read."""
    found = []
    for number in range(1, locations.tail().segment + 1):
        dead = locations.dead_bytes(number)
        if dead:
            try:
                segment = Segment(folder, number)
                table = segment.table()
                inside = list(segment.walk()) if table is None else table
            except (FileNotFoundError, SegmentDamagedError):
                inside = []
            except OSError:
                continue
            if 2 * dead > payloads_bytes(inside):
                found.append(number)
    return found


def _rebuild(folder: Path, budget_bytes: int) -> None:
    """Make the index from the segments, and remove those that do not fit or are mostly dead."""
    removed: list[int] = []
    with contextlib.suppress(OSError):
        if is_of_this_boot(folder):
            locations = Locations(folder)
            removed = _mostly_dead(folder, locations)
            locations.close()
    (folder / _BOOT).unlink(missing_ok=True)
    stores.close_unused()
    stores.forget(folder)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for number in removed:
        _remove(folder, number)
    locations = Locations(folder)
    try:
        tail = Tail()
        for number in segments(folder):
            tail = _take_in(folder, number, locations, tail, budget_bytes)
    finally:
        locations.close()
        stores.close_unused()
    write_small(folder / _BOOT, process.boot().encode())


def _take_in(folder: Path, number: int, locations: Locations, tail: Tail, budget_bytes: int) -> Tail:
    """Take in one segment. Returns where the next item goes then."""
    try:
        segment = Segment(folder, number, writes=True)
        table = segment.table()
        found, end = (table, FIRST) if table is not None else segment.whole()
    except OSError:
        found, end, table = [], FIRST, None
    written = tail.written_bytes + payloads_bytes(found)
    if not found or written > budget_bytes:
        _remove(folder, number)
        return tail
    is_last = table is None and number == segments(folder)[-1]
    if table is None and not is_last:
        segment.finish()
    after = Tail(number, end, written) if is_last else Tail(number + 1, FIRST, written)
    for start in range(0, len(found), _TOGETHER):
        _add(locations, found[start : start + _TOGETHER], after)
    return after


def _add(locations: Locations, found: list[FoundItem], tail: Tail) -> None:
    if not locations.add(found, tail):
        raise OSError(f"the index of {locations.store.folder} cannot be made: another process writes to it")


def _remove(folder: Path, number: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / f"{number:08}.segment").unlink()
