"""`stoker cache pull`: fill the cache before a job needs it.

What is cached, and under which names, is as a `stoker.Dataset` of the same source has it.
"""

import argparse
import os
import sys
from typing import Any

from stoker.errors import CommandError
from stoker.extras import TORCH
from stoker.source.opening import open_source
from stoker.source.reading import Named
from stoker.units import format_bytes, parse_bytes

_LINE_AGAIN = "\r\x1b[K"
_AT_ONCE, _AHEAD = 64, 4


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("url", help="a folder or pattern, of files or in an object store, as `stoker.open_source` takes it")
    parser.add_argument("--size", metavar="SIZE", help="how much of it to keep (default: all)")


def run(options: argparse.Namespace) -> int:
    """Read all samples once; those that fit are kept."""
    TORCH.check()
    from stoker.tensor.dataset import Dataset

    source = open_source(options.url)
    if not isinstance(source, Named):
        raise CommandError(f"samples of {options.url} have no names that other processes know")
    samples = len(source)
    sizes = list(source.sizes(range(samples)))
    size = parse_bytes(options.size, "--size") if options.size else sum(sizes)
    dataset = Dataset(source, _unprepared, cache=max(size, 1), cache_dir=options.dir)
    cache = dataset.cache
    assert cache is not None
    try:
        done = 0
        for start in range(0, samples, _AT_ONCE):
            dataset.expect(range(start, min(start + _AHEAD * _AT_ONCE, samples)))
            some = range(start, min(start + _AT_ONCE, samples))
            done += sum(map(len, dataset.fetch(some)))
            _show(f"{some.stop:,} of {samples:,} samples, {format_bytes(done)} of {format_bytes(sum(sizes))}")
        _show("")
        kept = cache.stats()
    finally:
        cache.close()
    if kept is None:
        raise CommandError("the cache cannot be used on this host: `stoker doctor` says more")
    there = f"{kept.items:,} items, {format_bytes(kept.payload_bytes)} of {format_bytes(sum(sizes))}"
    print(f"{source.name}: {there} are in the cache")
    return 0


def _unprepared(raw: memoryview, index: int, rng: Any) -> memoryview:
    return raw


def _show(text: str) -> None:
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        print(f"{_LINE_AGAIN}{text}", end="", file=sys.stderr, flush=True)
