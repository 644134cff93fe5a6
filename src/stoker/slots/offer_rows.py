"""The file in which a rank offers its works, and the words that the rank and a relay of its host have for each other in it.

    0      what the rank says of itself, in JSON
    4096   a row for each work under way: its number, who makes it, how long its description is; whether others may help,
           and words: what the rank tells a relay of this host (`RelayCounters`), what that tells it (`Heard`), and
           the pids of the rank's workers
    then   the descriptions, each in a place of its own

A row is a line of the processor's cache.
"""

from typing import Any, NamedTuple

import numpy as np

from stoker.memory import PAGE, Mapping

MOST_ROWS = 256
CACHE_LINE = 64
CONTENTS_AT = PAGE + -(-MOST_ROWS * CACHE_LINE // PAGE) * PAGE


class OfferRows:
    """The file in this process."""

    def __init__(self, descriptor: int, count: int) -> None:
        mapping = Mapping(descriptor, PAGE, CONTENTS_AT - PAGE)
        columns = np.ndarray((count, CACHE_LINE // 8), np.int64, mapping.buffer).T
        self.numbers, self.makers, lengths, states, told, heard, pids = columns[:7]
        # One number is read and written faster through these.
        self.number: Any = memoryview(self.numbers)
        self.maker: Any = memoryview(self.makers)
        self.length: Any = memoryview(lengths)
        self.state: Any = memoryview(states[:1])
        self.told: Any = memoryview(told)
        self.heard: Any = memoryview(heard)
        self.pids: Any = memoryview(pids)


class RelayCounters(NamedTuple):
    """What a rank tells a relay, which decides how much goes to other hosts. Counters of one pool."""

    batches: int = 0
    """That the loop has got."""
    samples: int = 0
    waited_us: int = 0
    """How long the loop waited for them."""
    timed: int = 0
    """How often the loop was timed over batches that were ready."""
    loop_rate: int = 0
    """What it took then, in thousandths of a sample per second."""


class Heard(NamedTuple):
    """What a relay tells a rank."""

    ratio_ppm: int = 0
    """The part of all works that may go to other hosts, in millionths."""
    workers: int = 0
    """Remote workers that are there."""
    wanted: int = 0
    """Remote workers that would remove the stall."""
    times: int = 0
    """How often the loop should have been timed by now."""
    part: int = 0
    """What they do of a batch, as a number (`plan.OFFLOAD_PARTS`)."""
