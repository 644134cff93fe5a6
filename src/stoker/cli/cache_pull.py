"""`stoker cache pull`: fill the cache before a job needs it.

What is cached, and under which names, is as a `stoker.Dataset` or a mounted folder of the same address has it.
"""

import argparse
import os
import sys
from typing import Any

from stoker.errors import CommandError
from stoker.extras import TORCH
from stoker.source.opening import open_stored
from stoker.source.reading import Named
from stoker.units import format_bytes, parse_bytes, parse_place

_LINE_AGAIN = "\r\x1b[K"
_AT_ONCE, _AHEAD = 64, 4
_FAULT = 6
"""The first fault in words, of what a Tally has counted."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("url", help="a folder or pattern, of files or in an object store, as `stoker.open_source` takes it")
    parser.add_argument("--size", metavar="SIZE", help="how much of it to keep in memory (default: all)")
    parser.add_argument(
        "--cache-disk",
        metavar="DIR:SIZE",
        help="with --size: keep what memory has no room for there, up to so much",
    )


def run(options: argparse.Namespace) -> int:
    """Read the samples that fit, each once, and keep them."""
    if options.cache_disk is not None:
        parse_place(options.cache_disk, "--cache-disk")
        if options.size is None:
            raise CommandError("--cache-disk needs --size SIZE: the disk keeps what memory has no room for")
    TORCH.check()
    from stoker.tensor.dataset import Dataset

    source = open_stored(options.url)
    if not isinstance(source, Named):
        raise CommandError(f"samples of {options.url} have no names that other processes know")
    samples = len(source)
    sizes = list(source.sizes(range(samples)))
    size = parse_bytes(options.size, "--size") if options.size else sum(sizes)
    dataset = Dataset(source, _unprepared, cache=max(size, 1), cache_dir=options.dir, cache_disk=options.cache_disk)
    cache = dataset.cache
    assert cache is not None
    try:
        done, whole = 0, sum(sizes)
        for start in range(0, samples, _AT_ONCE):
            room = cache.room_bytes()
            ahead = range(start, min(start + _AHEAD * _AT_ONCE, samples))
            if sum(sizes[number] for number in ahead) <= room:  # otherwise not all of them will be read
                dataset.expect(ahead)
            some = [number for number in ahead[:_AT_ONCE] if sizes[number] <= room]
            done += sum(map(len, dataset.fetch(some)))
            _show(f"{start + len(some):,} of {samples:,} samples, {format_bytes(done)} of {format_bytes(whole)}")
        _show("")
        kept = cache.stats()
        on_disk = cache.disk.stats() if cache.disk is not None else None
        fault = cache.tally.take()[_FAULT]
    finally:
        cache.close()
    if kept is None:
        raise CommandError("the cache cannot be used on this host: `stoker doctor` says more")
    if fault:
        print(f"stoker: {fault}", file=sys.stderr)
    there = f"{kept.items:,} items, {format_bytes(kept.payload_bytes)} of {format_bytes(whole)}"
    if on_disk is not None:
        there += f", and on the disk {on_disk.items:,} items, {format_bytes(on_disk.payload_bytes)},"
    print(f"{source.name}: {there} are in the cache")
    return 0


def _unprepared(raw: memoryview, index: int, rng: Any) -> memoryview:
    return raw


def _show(text: str) -> None:
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        print(f"{_LINE_AGAIN}{text}", end="", file=sys.stderr, flush=True)
