"""List the caches of this user on this host, or give their memory back.

A cache outlives its jobs, so that the next one finds it. When another needs the memory, those that nobody uses are removed
by themselves, the one used longest ago first.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from stoker.cache.shelf import Shelf, ShelvedCache
from stoker.errors import CommandError
from stoker.extras import CACHE
from stoker.units import format_bytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="what is cached, the one used last first")
    listing.add_argument("--json", action="store_true", help="print JSON")
    clearing = actions.add_parser("clear", help="remove caches that no job uses")
    clearing.add_argument("name", nargs="?", help="only the one of this name (a folder, mostly)")
    clearing.add_argument("--force", action="store_true", help="those in use, too: their jobs go on from storage")
    for action in (listing, clearing):
        action.add_argument("--dir", metavar="DIR", help="the cache_dir of the loader (default: tmpfs)")


def run(options: argparse.Namespace) -> int:
    """List the caches, or remove some."""
    CACHE.check()
    if options.dir is not None and not Path(options.dir).is_dir():
        raise CommandError(f"there is no directory {options.dir}")
    shelf = Shelf(options.dir)
    if options.action == "ls":
        return _list(shelf.caches(), options)
    return _clear(shelf, shelf.caches(looks_inside=False), options)


def _list(caches: list[ShelvedCache], options: argparse.Namespace) -> int:
    if options.json:
        rows = [
            {"name": found.name, "jobs": found.jobs, "used_at": found.used_at} | asdict(found.stats) for found in caches
        ]
        print(json.dumps(rows, indent=2))
    elif not caches:
        print("no caches")
    else:
        print(f"{'items':>10}  {'bytes':>8}  {'occupied':>8}  {'jobs':>4}  {'last used':16}  name")
        for found in caches:
            stats = found.stats
            used_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.used_at))
            sizes = f"{format_bytes(stats.payload_bytes):>8}  {format_bytes(stats.occupied_bytes):>8}"
            print(f"{stats.items:>10,}  {sizes}  {found.jobs:>4}  {used_at:16}  {ascii(found.name)[1:-1]}")
    return 0


def _clear(shelf: Shelf, caches: list[ShelvedCache], options: argparse.Namespace) -> int:
    if options.name is not None:
        caches = [found for found in caches if found.name == options.name]
        if not caches:
            raise CommandError(f"there is no cache of {options.name!r}: see `stoker cache ls`")
    freed = 0
    for found in caches:
        if found.jobs and not options.force:
            print(
                f"{found.name} is used by {found.jobs} job{'' if found.jobs == 1 else 's'}, and stays (--force removes it)"
            )
        else:
            shelf.remove(found)
            freed += found.stats.occupied_bytes
    print(f"{format_bytes(freed)} given back")
    return 0
