"""List the caches of this user on this host, fill one, or give their memory back.

`ls` shows the disk tiers (`--cache-disk`), too; the other actions leave them alone, unless `--dir` says where they are.
A cache outlives its jobs, so that the next one finds it. When another needs the memory, those that nobody uses are removed
by themselves, the one used longest ago first.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from stoker.cache.places import remembered
from stoker.cache.shelf import DISK, Shelf, ShelvedCache
from stoker.cli import cache_pull
from stoker.errors import CommandError
from stoker.extras import CACHE
from stoker.report.top import printable
from stoker.units import format_bytes

_EMPTY_BYTES = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="what is cached, the one used last first")
    listing.add_argument("--json", action="store_true", help="print JSON")
    clearing = actions.add_parser("clear", help="remove all caches that no job uses")
    clearing.add_argument("name", nargs="*", help="only those of these names (folders, mostly)")
    removing = actions.add_parser("rm", help="remove caches by name")
    removing.add_argument("name", nargs="+", help="as `stoker cache ls` shows it (a folder, mostly)")
    cache_pull.declare(filling := actions.add_parser("pull", help="fill the cache of a dataset before a job needs it"))
    for action in (clearing, removing):
        action.add_argument("--force", action="store_true", help="those in use, too: their jobs go on from storage")
        action.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    for action in (listing, clearing, removing, filling):
        action.add_argument("--dir", metavar="DIR", help="the cache_dir or cache_disk of the loader (default: tmpfs)")


def run(options: argparse.Namespace) -> int:
    """List the caches, fill one, or remove some."""
    CACHE.check()
    if options.dir is not None and not Path(options.dir).is_dir():
        raise CommandError(f"there is no directory {options.dir}")
    if options.action == "pull":
        return cache_pull.run(options)
    shelf = Shelf(options.dir)
    if options.action == "ls":
        others = [] if options.dir is not None else [Shelf(place) for place in remembered()]
        disks = [found for other in others for found in other.caches() if found.tier == DISK]
        return _list([*shelf.caches(), *disks], options)
    return _clear(shelf, shelf.caches(looks_inside=False), options)


def _is_empty(found: ShelvedCache) -> bool:
    """Whether nothing is lost without it. One that is damaged has no items that can be counted, and may be large."""
    return not found.jobs and not found.stats.items and found.stats.occupied_bytes < _EMPTY_BYTES


def _list(caches: list[ShelvedCache], options: argparse.Namespace) -> int:
    caches = [found for found in caches if not _is_empty(found)]
    if options.json:
        rows = [
            {"name": found.name, "tier": found.tier, "folder": str(found.folder), "jobs": found.jobs}
            | {"used_at": found.used_at}
            | asdict(found.stats)
            for found in caches
        ]
        print(json.dumps(rows, indent=2))
    elif not caches:
        print("no caches")
    else:
        print(f"{'tier':6}  {'items':>10}  {'content':>8}  {'occupied':>8}  {'jobs':>4}  {'last used':16}  name")
        for found in caches:
            stats = found.stats
            used_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.used_at))
            sizes = f"{format_bytes(stats.payload_bytes):>8}  {format_bytes(stats.occupied_bytes):>8}"
            print(f"{found.tier:6}  {stats.items:>10,}  {sizes}  {found.jobs:>4}  {used_at:16}  {printable(found.name)}")
    return 0


def _clear(shelf: Shelf, caches: list[ShelvedCache], options: argparse.Namespace) -> int:
    if options.name:
        for name in options.name:
            if not any(_is_called(found, name) for found in caches):
                raise CommandError(f"there is no cache of '{printable(name)}': see `stoker cache ls`")
        caches = [found for found in caches if any(_is_called(found, name) for name in options.name)]
    freed = 0
    for found in caches:
        name, size = printable(found.name), format_bytes(found.stats.occupied_bytes)
        if found.jobs and not options.force:
            print(f"{name} is used by {found.jobs} job{'' if found.jobs == 1 else 's'}, and stays (--force removes it)")
            continue
        if options.dry_run:
            print(f"{name} would be removed: {size}")
        else:
            shelf.remove(found)
        freed += found.stats.occupied_bytes
    print(f"{format_bytes(freed)} {'would be ' if options.dry_run else ''}given back")
    return 0


def _is_called(found: ShelvedCache, name: str) -> bool:
    """Whether a cache has this name, as it is or as `ls` shows it."""
    return name in (found.name, printable(found.name))
