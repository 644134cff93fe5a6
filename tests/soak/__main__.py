"""All storms in turn for an hour, or as long as is said, and one table at the end. `scripts/soak` runs it."""

import argparse
import collections
import os
import random
import sys
import time
import traceback

from tests.soak.storms import STORMS, Counts, left_behind

COLUMNS = {"events": "events", "wrong": "wrong bytes", "lost": "lost", "repeated": "repeated", "hangs": "hangs"}
COLUMNS |= {"left": "left behind"}


_ALONE = "STOKER_SOAK_ALONE"


def _with_own_dev_shm() -> int:
    """Again, where /dev/shm is nobody else's: whatever is left in it is ours, and what others have there is not touched."""
    inside = f'mount -t tmpfs tmpfs /dev/shm && {_ALONE}=1 exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-m", "tests.soak", *sys.argv[1:]]
    os.execvp(words[0], words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"), help="of all that is drawn")
    parser.add_argument("--storm", choices=STORMS, action="append", help="only this one; may be given again")
    options = parser.parse_args()
    if not os.environ.get(_ALONE):
        return _with_own_dev_shm()
    print(f"seed {options.seed}", flush=True)
    rng, began = random.Random(options.seed), time.monotonic()
    table: dict[str, Counts] = {name: collections.Counter() for name in options.storm or STORMS}
    rounds = 0
    while time.monotonic() - began < 60 * options.minutes or not rounds:
        for name, counts in table.items():
            at = time.monotonic()
            try:
                STORMS[name](rng, counts)
            except Exception:
                counts["wrong"] += 1
                traceback.print_exc()
            left = left_behind()
            counts["left"] += len(left)
            now = time.monotonic()
            print(f"{(now - began) / 60:6.1f} min  {name}: {now - at:.1f} s {dict(counts)} {left or ''}", file=sys.stderr)
        rounds += 1
    print(f"{'':16}" + "".join(f"{title:>13}" for title in COLUMNS.values()))
    for name, counts in [*table.items(), ("all", sum(table.values(), Counts()))]:
        print(f"{name:16}" + "".join(f"{counts[column]:>13,}" for column in COLUMNS))
    return int(any(counts[column] for counts in table.values() for column in COLUMNS if column != "events"))


if __name__ == "__main__":
    sys.exit(main())
