"""Sources for tests and benchmarks: samples that are made up, and storage that is slow, throttled or failing on purpose.

The wrappers change when bytes come, never which. A wrapped source has names if the inner one has. Clocks and counts belong
to one process each: several that share a `Throttled` source have its rate each.
"""

import errno
import hashlib
import struct
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

from stoker.errors import ConfigError
from stoker.memory import Bytes
from stoker.source.process import PerProcess
from stoker.source.reading import Named, Source, checked
from stoker.units import parse_rate

_BURST_S = 0.05
_PATTERN_BYTES = 64 << 10


class Clock(Protocol):
    """What a source asks of time."""

    def now(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed."""


class WallClock:
    """The time of this host."""

    def now(self) -> float:
        """Seconds that no change of the date disturbs."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """In real time."""
        time.sleep(seconds)


class Synthetic:
    """Bytes that follow from the seed and the number of a sample, of one size or of sizes from low to high."""

    def __init__(self, samples: int, size: int | tuple[int, int], seed: int = 0) -> None:
        low, high = size if isinstance(size, tuple) else (size, size)
        if samples < 0 or not 0 <= low <= high:
            raise ConfigError(
                f"sizes are a number or (low, high), from 0, not {size!r}, for 0 or more samples, not {samples!r}"
            )
        self.samples, self.low, self.high, self.seed = samples, low, high, seed
        self.name = f"synthetic:{low}-{high}:{seed}"
        self._pattern = hashlib.shake_128(struct.pack("<q", seed)).digest(_PATTERN_BYTES)

    def __len__(self) -> int:
        return self.samples

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """Drawn evenly, from the seed and the number."""
        return [self._size(self.key(number)) for number in ids]

    def key(self, number: int) -> bytes:
        """A digest of the seed and the number."""
        checked((number,), self.samples)
        return hashlib.blake2b(struct.pack("<qq", self.seed, number), digest_size=16).digest()

    def version(self, number: int) -> bytes:
        """Always the same."""
        checked((number,), self.samples)
        return bytes(16)

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The key of a sample, then a pattern from a place that follows from it: no two are alike, and none costs much."""
        return [self._content(self.key(number)) for number in ids]

    def _size(self, key: bytes) -> int:
        return self.low + int.from_bytes(key[:8], "little") % (self.high - self.low + 1)

    def _content(self, key: bytes) -> bytes:
        size = self._size(key)
        start = int.from_bytes(key[8:], "little") % _PATTERN_BYTES
        times = -(-(start + size) // _PATTERN_BYTES)
        return (key + (self._pattern * times)[start:])[:size]


class _Around:
    """Wraps another source, and has its samples and sizes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        if isinstance(source, Named):  # a class that had names would have them around a source without
            for attribute in ("name", "key", "version"):
                setattr(self, attribute, getattr(source, attribute))

    def __len__(self) -> int:
        return len(self.source)

    def sizes(self, ids: Sequence[int]) -> Sequence[int]:
        """The sizes of the inner source, without delay."""
        return self.source.sizes(ids)


class _Allowance:
    """When the bytes that were given out so far are paid for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paid: float | None = None

    def spend(self, seconds: float, began: float) -> float:
        with self._lock:
            since = began if self._paid is None else max(self._paid, began - _BURST_S)
            self._paid = since + seconds
            return self._paid


class Throttled(_Around):
    """Another source at so many bytes per second, or '530MB/s', in this process; its threads share them.

    Each read ends when its bytes are paid for, so a rate holds over many reads however late a sleep ends. Idle time is
    saved up for no more than 50 ms.
    """

    def __init__(self, source: Source, bytes_per_s: float | str, *, clock: Clock | None = None) -> None:
        super().__init__(source)
        self.bytes_per_s = parse_rate(bytes_per_s) if isinstance(bytes_per_s, str) else float(bytes_per_s)
        if not self.bytes_per_s > 0:
            raise ConfigError(f"a rate is more than 0 bytes per second, not {bytes_per_s!r}")
        self._clock = clock or WallClock()
        self._allowance = PerProcess(_Allowance)

    def read(self, ids: Sequence[int]) -> Sequence[Bytes]:
        """What the inner source reads, once that many bytes may have passed."""
        began = self._clock.now()
        contents = self.source.read(ids)
        paid = self._allowance.get().spend(sum(map(len, contents)) / self.bytes_per_s, began)
        if (left := paid - self._clock.now()) > 0:
            self._clock.sleep(left)
        return contents


class Slow(_Around):
    """Another source whose every request takes a while, like one over a network; `concurrent` of one read at once."""

    def __init__(self, source: Source, latency_s: float, *, concurrent: int = 1, clock: Clock | None = None) -> None:
        if latency_s < 0 or concurrent < 1:
            raise ConfigError(f"a latency is 0 s or more, not {latency_s!r}, for 1 or more at once, not {concurrent!r}")
        super().__init__(source)
        self.latency_s, self.concurrent = latency_s, concurrent
        self._clock = clock or WallClock()

    def read(self, ids: Sequence[int]) -> Sequence[Bytes]:
        """What the inner source reads, one latency later for each `concurrent` samples."""
        self._clock.sleep(self.latency_s * -(-len(ids) // self.concurrent))
        return self.source.read(ids)


class Failing(_Around):
    """Another source that fails the first `times` times that one of these samples is read."""

    def __init__(
        self, source: Source, ids: Collection[int], times: int = 1, error: Exception | type[Exception] | None = None
    ) -> None:
        super().__init__(source)
        self.ids, self.times = frozenset(ids), times
        self.error = error or OSError(errno.EIO, "made to fail")
        self._failed = PerProcess[Counter[int]](Counter)

    def read(self, ids: Sequence[int]) -> Sequence[Bytes]:
        """What the inner source reads, or the error."""
        failed = self._failed.get()
        for number in ids:
            if number in self.ids and failed[number] < self.times:
                failed[number] += 1
                raise self.error
        return self.source.read(ids)
