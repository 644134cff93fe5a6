"""All storms in turn for an hour, or as long as is said, and one table at the end. `scripts/soak` runs it.

The table comes in every case but kill -9: a storm that does not end is counted as a hang and left, and one who stops the
soak by a signal gets the table of what was done so far.
"""

import argparse
import collections
import contextlib
import ctypes
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from types import FrameType

import psutil
from tests.soak.storms import STORMS, Counts, left_behind

COLUMNS = {"events": "events", "wrong": "wrong bytes", "lost": "lost", "repeated": "repeated", "hangs": "hangs"}
COLUMNS |= {"left": "left behind"}

STORM_S = 900
"""No storm takes so long: one that does hangs in a place that has no limit of its own."""
_ALONE = "STOKER_SOAK_ALONE"
_PR_SET_CHILD_SUBREAPER = 36


class Stopped(BaseException):
    """Somebody has asked the soak to end."""


def _with_own_dev_shm() -> int:
    """Again, where /dev/shm is nobody else's: whatever is left in it is ours, and what others have there is not touched."""
    inside = f'mount -t tmpfs tmpfs /dev/shm && {_ALONE}=1 exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-m", "tests.soak", *sys.argv[1:]]
    os.execvp(words[0], words)


def _stop(number: int, _: FrameType | None) -> None:
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _hang(number: int, _: FrameType | None) -> None:
    raise TimeoutError(f"the storm has not ended after {STORM_S} s")


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    signal.alarm(STORM_S)
    try:
        yield
    finally:
        signal.alarm(0)


def _end_children() -> None:
    """Those of a storm that was cut off, and what they have started."""
    for _ in range(30):
        if not (children := psutil.Process().children(recursive=True)):
            break
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def _storm(name: str, rng: random.Random, counts: Counts) -> None:
    try:
        with _limit():
            STORMS[name](rng, counts)
    except TimeoutError:
        counts["hangs"] += 1
        traceback.print_exc()
        _end_children()
    except Exception:
        counts["wrong"] += 1
        traceback.print_exc()
        _end_children()


def _storms(table: dict[str, Counts], rng: random.Random, minutes: float) -> None:
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < 60 * minutes or not rounds:
        rounds += 1
        for name, counts in table.items():
            at = time.monotonic()
            _storm(name, rng, counts)
            left = left_behind()
            counts["left"] += len(left)
            now = time.monotonic()
            so_far = ", ".join(f"{counts[column]} {title}" for column, title in COLUMNS.items())
            print(f"{(now - began) / 60:6.1f} min  round {rounds}, {name}, {now - at:.1f} s: {so_far}", *left, flush=True)


def _show(table: dict[str, Counts]) -> None:
    print(f"{'':16}" + "".join(f"{title:>13}" for title in COLUMNS.values()))
    for name, counts in [*table.items(), ("all", sum(table.values(), Counts()))]:
        print(f"{name:16}" + "".join(f"{counts[column]:>13,}" for column in COLUMNS), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"), help="of all that is drawn")
    parser.add_argument("--storm", choices=STORMS, action="append", help="only this one; may be given again")
    options = parser.parse_args()
    if not os.environ.get(_ALONE):
        return _with_own_dev_shm()
    # Those whose parents were killed become children of this process, which then sees what is left of them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    table: dict[str, Counts] = {name: collections.Counter() for name in options.storm or STORMS}
    stopped_by = 0
    try:
        signal.signal(signal.SIGALRM, _hang)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, _stop)
        print(f"seed {options.seed}, process {os.getpid()}", flush=True)
        _storms(table, random.Random(options.seed), options.minutes)
    except Stopped as stopped:
        stopped_by = stopped.args[0]
        print(f"stopped by {signal.Signals(stopped_by).name}; so far:", flush=True)
        _end_children()
    finally:
        _show(table)
    if stopped_by:
        return 128 + stopped_by
    return int(any(counts[column] for counts in table.values() for column in COLUMNS if column != "events"))


if __name__ == "__main__":
    sys.exit(main())
