"""One loader's numbers in a small file that others may read: how they lie in it, how they are written, how they are read.

       0  who publishes this; it never changes
     768  single numbers of eight bytes, each written at once
    1024  the counters, in two places

Counters are written to the two places in turn, and then the number of the write is stored, whose last bit says which place
holds. So neither side ever waits, what is read is of one moment, and a writer that is killed half-way leaves the counters
that were there before. Both ends of a place carry the number of its write, too.

A record belongs to the process that made it. In a forked child, writes to it are discarded.
"""

import mmap
import os
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.host import forks
from stoker.host.locks import close_lock

RECORD_BYTES = 2048
_MAGIC = b"stoker 5"
_FACTS = struct.Struct("<8sqqQqqdq16s256s128s64s32s32s")
_WORDS_AT = 768
_WORDS = struct.Struct("<QdQQQ")  # number of the latest write, asked at, who is late, batches in an epoch, role
ROLES = ("", "train", "eval")
"""What the loop does with its batches, by its number in a record; "" is unknown."""
_PLACES_AT = (1024, 1536)
_COUNTERS = struct.Struct("<QQQdddQQQQQqqQdQQQdQQ")
_REMOTE = "remote", "remote_bytes", "remote_ratio", "remote_workers"
"""What is at the end of the counters."""
_PID_BITS = 32
_TRIES = 100

Read = Callable[[int, int], bytes]
"""Gives so many bytes of a record from an offset."""


class PublishedMeter(Protocol):
    """What is published of a loader's meter."""

    batches: int
    samples: int
    wait_s: float
    prep_s: float
    fetch_s: float
    hits: int
    misses: int
    bytes_cache: int
    bytes_storage: int
    faults: int
    workers: int
    remote: int
    remote_bytes: int
    remote_ratio: float
    remote_workers: int


class PublishedProgress(Protocol):
    """What is published of a loader's progress."""

    epoch: int
    batches: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The loader that a record belongs to."""

    pid: int
    started: int
    """When the process was started, in ticks since boot."""
    namespace: int
    """In which the pid means something."""
    rank: int | None
    number: int
    """Tells the loaders of one process apart."""
    made_at: float
    """When it was first iterated, on the host's monotonic clock."""
    kind: str
    """"processes" or "threads"."""
    script: str
    dataset: str
    group: str = ""
    """The name of the group that it is in, if any."""
    stream: str = ""
    """Tells those of one name apart."""
    member: int = -1
    """Which of the group it is."""
    cache: str = ""
    """The folder of its cache on the shelf, if it has one: loaders of the same data have the same."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the loader's group."""
        return self.group, self.stream


@dataclass(frozen=True, slots=True)
class Seen:
    """What a loader had published at one moment. Counters only grow."""

    facts: Facts
    batches: int
    samples: int
    wait_s: float
    prep_s: float
    fetch_s: float
    hits: int
    misses: int
    bytes_cache: int
    bytes_storage: int
    faults: int
    workers: int
    epoch: int
    epoch_batches: int
    """Batches of this epoch that the loop has got."""
    left_at: float
    """When the loop last got what it asked for; 0 before the first batch."""
    is_over: bool
    """Whether that was the end of the epoch."""
    asked_at: float
    """When the loop last asked."""
    late_pid: int
    """The worker that the loop has been waiting for for seconds, if it is known; else 0."""
    epoch_length: int
    """Batches in an epoch, if that is known; else 0."""
    remote: int = 0
    """Samples that other hosts have prepared."""
    remote_bytes: int = 0
    remote_ratio: float = 0.0
    """The part of all batches that they may prepare now."""
    remote_workers: int = 0
    role: str = ""
    """One of ROLES."""

    @property
    def is_waiting(self) -> bool:
        """Whether the loop is inside the loader."""
        return self.asked_at > self.left_at

    def waited_s(self, at: float) -> float:
        """How long the loop has waited so far, the wait that is going on included."""
        return self.wait_s + (max(0.0, at - self.asked_at) if self.is_waiting else 0.0)


class Record:
    """The side that writes. What the training loop calls is `times[0] = now()` as it asks, and `tell` as it gets."""

    __slots__ = ("__weakref__", "_buffer", "_number", "_unlink", "_words", "owner", "times")

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a file, locked and filled; its lock is held until the record is closed."""
        try:
            mapping = mmap.mmap(descriptor, RECORD_BYTES)  # which holds a duplicate of the descriptor, and so the lock
        finally:
            close_lock(descriptor)
        self.owner = os.getpid()
        self._number = 0
        self._unlink = weakref.finalize(self, _unlink, path, self.owner)
        self._write_to(mapping)
        _records.add(self)

    def _write_to(self, buffer: mmap.mmap | bytearray) -> None:
        words = memoryview(buffer)[_WORDS_AT : _WORDS_AT + _WORDS.size]
        self._buffer = buffer
        self._words = words.cast("Q")
        self.times = words[8:16].cast("d")

    def tell(self, meter: PublishedMeter, progress: PublishedProgress, at: float, is_over: bool = False) -> None:
        """Publish the counters: the loop goes on with a batch, or without."""
        self._number = number = self._number + 1
        try:
            _COUNTERS.pack_into(
                self._buffer,
                _PLACES_AT[number & 1],
                number,
                meter.batches,
                meter.samples,
                meter.wait_s,
                meter.prep_s,
                meter.fetch_s,
                meter.hits,
                meter.misses,
                meter.bytes_cache,
                meter.bytes_storage,
                meter.faults,
                meter.workers,
                progress.epoch,
                progress.batches,
                at,
                is_over,
                meter.remote,
                meter.remote_bytes,
                meter.remote_ratio,
                meter.remote_workers,
                number,
            )
        except (struct.error, TypeError, OverflowError):
            self.close()  # an epoch that is no number, say: not worth an error in somebody's training
        else:
            self._words[0] = number

    def late(self, batches: int, pid: int) -> None:
        """The loop has waited for seconds, after so many batches, for this worker."""
        self._words[2] = (batches & 0xFFFFFFFF) << _PID_BITS | pid

    def length(self, batches: int) -> None:
        """How many batches an epoch has."""
        self._words[3] = batches

    def role(self, role: str) -> None:
        """What the loop does with the batches of this epoch: one of ROLES."""
        self._words[4] = ROLES.index(role)

    def close(self) -> None:
        """Remove the record. Iterators may go on writing, without effect."""
        self._unlink()
        self.forget()

    def forget(self) -> None:
        """Discard all writes from now on, and release the lock."""
        self._unlink.detach()
        self._write_to(bytearray(RECORD_BYTES))


_records: weakref.WeakSet[Record] = weakref.WeakSet()


def _unlink(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)


def _forget_all() -> None:
    for record in list(_records):
        record.forget()


forks.register(forks.Stage.HOLDINGS, after_in_child=_forget_all)


def facts_bytes(facts: Facts) -> bytes:
    """The beginning of a record. Text that is too long keeps its end."""
    rank = -1 if facts.rank is None else facts.rank
    numbers = facts.pid, facts.started, facts.namespace, rank, facts.number, facts.made_at, facts.member
    texts = _text(facts.kind, 16), _text(facts.script, 256), _text(facts.dataset, 128)
    return _FACTS.pack(_MAGIC, *numbers, *texts, _text(facts.group, 64), _text(facts.stream, 32), _text(facts.cache, 32))


def _text(text: str, most: int) -> bytes:
    encoded = text.replace("\0", "").encode("utf-8", "backslashreplace")
    if len(encoded) > most:
        encoded = b"..." + encoded[3 - most :].decode("utf-8", "ignore").encode()
    return encoded


def read_facts(read: Read) -> Facts:
    """The loader that a record belongs to. Raises ValueError if this is no record of ours."""
    head = read(_FACTS.size, 0)
    if len(head) != _FACTS.size or not head.startswith(_MAGIC):
        raise ValueError("not a record of this version")
    _, pid, started, namespace, rank, number, made_at, member, *texts = _FACTS.unpack(head)
    kind, script, dataset, group, stream, cache = (text.rstrip(b"\0").decode("utf-8", "replace") for text in texts)
    whose = pid, started, namespace, None if rank < 0 else rank, number, made_at
    return Facts(*whose, kind, script, dataset, group, stream, member, cache)


def read_record(read: Read, facts: Facts) -> Seen | None:
    """The counters at one moment, or None if they are written so fast that none is seen at rest."""
    for _ in range(_TRIES):
        number, asked_at, late, length, role = _WORDS.unpack(read(_WORDS.size, _WORDS_AT))
        first, *counters, last = _COUNTERS.unpack(read(_COUNTERS.size, _PLACES_AT[number & 1]))
        (after,) = struct.unpack("<Q", read(8, _WORDS_AT))
        if first == last == number == after:
            *counts, left_at, is_over = counters[: -len(_REMOTE)]
            is_late = asked_at > left_at and late >> _PID_BITS == counts[0] & 0xFFFFFFFF
            late_pid = late & ((1 << _PID_BITS) - 1) if is_late else 0
            values: list[Any] = [*counts, left_at, bool(is_over), asked_at, late_pid, length]
            values += [*counters[-len(_REMOTE) :], ROLES[role] if role < len(ROLES) else ""]
            return Seen(facts, *values)
    return None
