"""One worker process on another host: `python -m stoker.remote tcp://HOST:PORT`. `stoker worker` starts them.

With `--told` its parent tells it the secret of one run on standard input, in a document (`remote/tending`).
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
    """The secret that the parent tells. Ends this process if the parent had gone before it could be noticed."""
    told = json.loads(sys.stdin.readline())
    if os.getppid() != told["parent"]:
        sys.exit()
    return str(told["secret"]).encode()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            if "--told" in sys.argv:
                main(parse_address(sys.argv[1]), _told_secret(), _PATIENCE_S)
            else:
                main(parse_address(sys.argv[1]), shared_secret())
    except StokerError as error:
        print(f"stoker: {error}", file=sys.stderr)
        sys.exit(_REFUSED)
