"""Works of one rank that workers of other ranks may make, too.

The training process of a rank writes down every work that it orders, in a file that only this user can open. Its own
workers get the same work over their lines. A worker that has nothing to do looks at the files of all ranks of its job.

    NOBODY  -- an own worker begins it ------------>  OWN    -- it reports the batch -->  DONE
    NOBODY  -- a worker of another rank takes it -->  (its process)
    DONE or (its process)  -- the batch has arrived -->  OVER
    (its process)  -- it cannot make it --> FOR_OWN  -- an own worker begins it -->  OWN
    (its process)  -- the kernel says that it is dead or stopped: an own worker begins it -->  OWN

Nothing is locked. Two processes that begin a work at the same moment both make it: the batches are equal, and the training
process drops the second. It is never lost, because an own worker that has nothing to do takes up what is left. A process
that was held up between looking at a row and writing to it finds another work there: it leaves that to the own workers.

How the file is laid out is in `offer_rows`. Descriptions are written to memory where that is known to be there: this
happens once in a batch, and a batch of small samples takes half a millisecond.
"""

import contextlib
import json
import os
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import ResourceError
from stoker.host.folders import add_entry, entries
from stoker.host.locks import close_lock
from stoker.memory import PAGE, Mapping
from stoker.slots.makers import is_at_work, pid_of
from stoker.slots.offer_rows import CACHE_LINE, CONTENTS_AT, MOST_ROWS, Heard, OfferRows, RelayCounters

NOBODY, OWN, FOR_OWN, DONE, OVER = 0, -1, -2, -3, -4
"""Who makes a work, where that is not the process of another rank's worker."""
UNKNOWN, MAY_BE_HELPED, DRAWS = range(3)
"""Whether workers of other ranks may make a rank's batches."""
ROWS = 32
"""How many works a rank has rows for, at least."""
_FREE = -1
_CONTENT_BYTES = 64 << 10


def rows_for(works: int) -> int:
    """How many rows a rank needs that orders so many works ahead. Those who help it may each have one more."""
    return min(max(ROWS, 4 * works), MOST_ROWS)


class NotOfferedError(ResourceError):
    """Works cannot be offered on this host; own workers make them."""


class Offers:
    """The works of this rank, in its training process."""

    def __init__(self, folder: Path, about: dict[str, Any], state: int, rows: int = ROWS) -> None:
        """Add an entry to a folder, which others find as long as this process lives."""

        def fill(descriptor: int) -> None:
            os.posix_fallocate(descriptor, 0, CONTENTS_AT)  # a full tmpfs is an error here, and a fatal signal later
            os.ftruncate(descriptor, CONTENTS_AT + rows * _CONTENT_BYTES)
            text = json.dumps({"rows": rows, **about}).encode()
            os.pwrite(descriptor, text.ljust(PAGE, b" "), 0)
            table = np.full((rows, CACHE_LINE // 8), _FREE, np.int64)
            table[:, 1] = OVER
            table[0, 3] = state
            table[:, 4:7] = 0
            os.pwrite(descriptor, table.tobytes(), PAGE)

        try:
            self.path, self._descriptor = add_entry(folder, fill)
        except OSError as error:
            raise NotOfferedError(f"there is no room for what ranks offer each other in {folder}: {error}") from error
        self._owner = os.getpid()
        # A mapping keeps its open file, and a lock on that, in forked children too. So this one is never locked.
        mapped = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._rows = OfferRows(mapped, rows)
            self._contents = Mapping(mapped, CONTENTS_AT, rows * _CONTENT_BYTES)
        finally:
            os.close(mapped)
        self._memory: Any = memoryview(self._contents.buffer).cast("B")
        self._is_there = [0] * rows
        """How many bytes of each row's description have pages in the file system, because they were written before."""
        self._kept: set[int] = set()
        """Works under way that only own workers know of. A row is not used for a later work before they are over."""
        self._kept_in = [0] * rows
        self._count = rows

    def offer(self, number: int, content: bytes) -> None:
        """Offer a work, unless there is no room for it. Own workers make it then."""
        rows, row = self._rows, number % self._count
        if rows.maker[row] != OVER or self._kept_in[row] or not self._write(row, content):
            self.keep(number)
            return
        rows.length[row] = len(content)
        rows.number[row] = number
        rows.maker[row] = NOBODY  # the last, which makes it visible

    def keep(self, number: int) -> None:
        """Note a work that is ordered from an own worker and not offered."""
        self._kept.add(number)
        self._kept_in[number % self._count] += 1

    def _write(self, row: int, content: bytes) -> bool:
        length, place = len(content), row * _CONTENT_BYTES
        if length <= self._is_there[row]:
            self._memory[place : place + length] = content
            return True
        if length > _CONTENT_BYTES:
            return False
        try:
            is_written = os.pwrite(self._descriptor, content, CONTENTS_AT + place) == length
        except OSError:
            return False  # the tmpfs is full. If there is room for a part, that is written, and there is no error
        if is_written:
            self._is_there[row] = -(-length // PAGE) * PAGE
        return is_written

    def taken_by(self, number: int) -> int:
        """The pid of another rank's worker that has taken a work; 0 if none has."""
        row = number % self._count
        maker = self._rows.maker[row] if self._rows.number[row] == number else NOBODY
        return pid_of(maker) if maker > 0 else 0

    @property
    def draws(self) -> bool:
        """Whether a batch of this rank was seen to draw, so that no other rank can help."""
        return bool(self._rows.state[0] == DRAWS)

    def over(self, number: int) -> None:
        """Take back an offer: the batch is here. Its number stays, so that own workers know it when they come to it."""
        row = number % self._count
        if self._rows.number[row] == number:
            self._rows.maker[row] = OVER
        elif number in self._kept:
            self._kept.remove(number)
            self._kept_in[row] -= 1

    def tell(self, batches: int, samples: int, waited_us: int) -> None:
        """Say how far the loop is."""
        words = self._rows.told
        words[0], words[1], words[2] = batches, samples, waited_us

    def tell_loop(self, timed: int, rate: float) -> None:
        """Say what the loop took when it was last timed, in samples per second."""
        words = self._rows.told
        words[4], words[3] = int(rate * 1000), timed

    def heard(self) -> Heard:
        """What a relay says."""
        words = self._rows.heard
        return Heard(words[0], words[1], words[2], words[3], words[4])

    def name_workers(self, pids: Sequence[int]) -> None:
        """Say which processes are the rank's own workers."""
        for place, pid in enumerate(pids[: self._count]):
            self._rows.pids[place] = pid

    def close(self) -> None:
        """Remove the entry."""
        if self._descriptor >= 0 and self._owner == os.getpid():
            self.path.unlink(missing_ok=True)
            self._rows.makers[:] = OVER  # for those who look at it just now
            self._rows.numbers[:] = _FREE
            descriptor, self._descriptor = self._descriptor, -1
            close_lock(descriptor)


class OffersSeen:
    """The works of a rank, in a worker: of the same rank or of another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self.about = json.loads(os.pread(self._descriptor, PAGE, 0))
            self._count = int(self.about["rows"])
            self._rows = OfferRows(self._descriptor, self._count)
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def state(self) -> int:
        """Whether workers of other ranks may help: UNKNOWN, MAY_BE_HELPED or DRAWS."""
        return int(self._rows.state[0])

    @state.setter
    def state(self, state: int) -> None:
        self._rows.state[0] = state

    def told(self) -> RelayCounters:
        """How far the loop is."""
        words = self._rows.told
        return RelayCounters(*(words[place] for place in range(len(RelayCounters._fields))))

    def say(self, heard: Heard) -> None:
        """Tell the rank something."""
        words = self._rows.heard
        for place, value in enumerate(heard):
            words[place] = value

    def pids(self) -> list[int]:
        """The processes that are the rank's own workers."""
        return [pid for pid in self._rows.pids.tolist() if pid]

    def busy(self) -> int:
        """How many own workers have something to do."""
        return int(self._rows.makers.tolist().count(OWN))

    def made(self) -> int:
        """How many works are done, of all that were ordered."""
        makers, numbers = self._rows.makers.tolist(), self._rows.numbers.tolist()
        return int(max(numbers)) + 1 - sum(maker not in (DONE, OVER) for maker in makers)

    def is_with(self, number: int, name: int) -> bool:
        """Whether the worker with this name has a work."""
        row = number % self._count
        return bool(self._rows.number[row] == number and self._rows.maker[row] == name)

    def has_queue(self) -> bool:
        """Whether works wait for an own worker."""
        makers = self._rows.makers.tolist()
        return NOBODY in makers or FOR_OWN in makers

    def is_settled(self, number: int) -> bool:
        """Whether the batch of a work has arrived, which another rank's worker had taken."""
        row = number % self._count
        return bool(self._rows.number[row] != number or self._rows.maker[row] in (DONE, OVER))

    def begin_left(self, number: int) -> bool:
        """An own worker takes up a work that was given back, or whose worker is not at work any more."""
        row = number % self._count
        maker = self._rows.maker[row]
        if maker != FOR_OWN and (maker <= 0 or is_at_work(maker)):
            return False
        return self._set(number, OWN)

    def begin(self, number: int) -> bool:
        """An own worker comes to a work that it was sent. False if it need not make it."""
        row = number % self._count
        known = self._rows.number[row]
        if known != number:  # a smaller number: this work was not offered; a larger one: it was over long ago
            return bool(known < number)
        return self._rows.maker[row] in (NOBODY, FOR_OWN) and self._set(number, OWN)

    def done(self, number: int) -> None:
        """An own worker is about to report the batch."""
        if self._rows.number[number % self._count] == number:
            self._set(number, DONE)

    def take(self, number: int, name: int) -> bytes | None:
        """Take a work for the worker with this name. None if it is not there any more."""
        row = number % self._count
        if self._rows.number[row] != number or self._rows.maker[row] not in (NOBODY, FOR_OWN):
            return None
        content = os.pread(self._descriptor, self._rows.length[row], CONTENTS_AT + row * _CONTENT_BYTES)
        return content if self._set(number, name) else None

    def _set(self, number: int, maker: int) -> bool:
        """Write down who makes a work. False if another work has come into its row just now: this one is over then."""
        row = number % self._count
        self._rows.maker[row] = maker
        if self._rows.number[row] == number:
            return True
        if self._rows.maker[row] == maker:
            self._rows.maker[row] = FOR_OWN
        return False

    def give_back(self, number: int) -> None:
        """The worker that took a work cannot make it: it is left to the rank's own workers."""
        row = number % self._count
        if self._rows.number[row] == number:
            self._rows.maker[row] = FOR_OWN

    def waiting(self) -> list[int]:
        """Works that a worker of another rank may begin, in the order in which they are needed."""
        if self._rows.state[0] != MAY_BE_HELPED:
            return []
        makers = self._rows.makers.tolist()
        if NOBODY not in makers:
            return []
        return sorted(self._rows.number[row] for row, maker in enumerate(makers) if maker == NOBODY)

    def is_behind(self, workers: int) -> bool:
        """Whether all workers of the rank are busy, and no finished batch waits for its training process."""
        makers = self._rows.makers.tolist()
        return makers.count(OWN) >= workers and DONE not in makers

    def are_all_busy(self, workers: int) -> bool:
        """Whether all workers of the rank have something to do."""
        return self.busy() >= workers

    def give_back_if(self, number: int, name: int) -> None:
        """Leave a work to the rank's own workers, if the worker with this name still has it."""
        row = number % self._count
        if self._rows.number[row] == number and self._rows.maker[row] == name:
            self._rows.maker[row] = FOR_OWN

    def left(self) -> list[int]:
        """Works that an own worker without orders takes up: given back, not begun, or with a worker that is not at work."""
        makers = self._rows.makers.tolist()
        if max(makers) < NOBODY and FOR_OWN not in makers:
            return []
        found = []
        for row, maker in enumerate(makers):
            if maker in (NOBODY, FOR_OWN):
                found.append(self._rows.number[row])
            elif maker > 0 and not is_at_work(maker):
                number = self._rows.number[row]
                if self._rows.maker[row] == maker:
                    self._rows.maker[row] = FOR_OWN
                    found.append(number)
        return sorted(found)

    def close(self) -> None:
        """Close it in this process."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def look_for(folder: Path, job: str, known: Set[Path]) -> tuple[Set[Path], dict[Path, OffersSeen]]:
    """Which ranks of a job have gone of those that are known, and what others offer."""
    there: set[Path] = set()
    with contextlib.suppress(OSError):  # the folder was removed
        there = {path for path, _ in entries(folder)}
    found: dict[Path, OffersSeen] = {}
    for path in there - known:
        with contextlib.suppress(OSError, ValueError, KeyError):  # it has just ended
            works = OffersSeen(path)
            if works.about["job"] == job:
                found[path] = works
            else:
                works.close()
    return known - there, found
