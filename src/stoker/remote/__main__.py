"""One worker process on another host: `python -m stoker.remote tcp://HOST:PORT PARENT LINE`. `stoker worker` starts them.

It ends with its parent, which says its number: it may have gone before that could be noticed. LINE is a descriptor of the
parent's, where a worker that is refused says why: all of that parent are, and one line is enough. With `--told` instead,
the parent tells its number and the secret of one run on standard input, in a document (`remote/tending`).
"""

import contextlib
import ctypes
import json
import os
import signal
import sys

from stoker.errors import StokerError
from stoker.remote.address import parse_address
from stoker.remote.worker import main
from stoker.wire.secret import shared_secret

_REFUSED = 3
_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 60.0
"""A worker that was placed for one run does not wait longer for it: the run is over, or this host cannot dial it."""


def _told_secret() -> bytes:
    """The secret that the parent tells."""
    told = json.loads(sys.stdin.readline())
    _end_without(told["parent"])
    return str(told["secret"]).encode()


def _end_without(parent: int) -> None:
    """End this process if its parent had gone before it could be noticed."""
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            if "--told" in sys.argv:
                main(parse_address(sys.argv[1]), _told_secret(), _PATIENCE_S)
            else:
                _end_without(int(sys.argv[2]))
                main(parse_address(sys.argv[1]), shared_secret())
    except StokerError as error:
        if "--told" in sys.argv:
            print(f"stoker: {error}", file=sys.stderr)
        else:
            os.write(int(sys.argv[3]), f"{error}\0".encode())
        sys.exit(_REFUSED)
