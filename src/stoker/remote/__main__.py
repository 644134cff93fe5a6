"""One worker process on another host: `python -m stoker.remote tcp://HOST:PORT`. `stoker worker` starts them."""

import contextlib
import ctypes
import signal
import sys

from stoker.errors import StokerError
from stoker.remote.address import parse_address
from stoker.remote.worker import main
from stoker.wire.secret import shared_secret

_REFUSED = 3
_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            main(parse_address(sys.argv[1]), shared_secret())
    except StokerError as error:
        print(f"stoker: {error}", file=sys.stderr)
        sys.exit(_REFUSED)
