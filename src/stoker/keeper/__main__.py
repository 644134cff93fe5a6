"""The keeper's process: `python -m stoker.keeper ENTRY DESCRIPTOR SOCKET`. Processes that need one start it (`door`)."""

import os
import sys

_NICE = 5


def main(entry: str, descriptor: int, listening: int) -> None:
    """Become a process of nobody's, and serve until the last has left."""
    if os.fork():
        os._exit(0)  # who started this waits for this one, and is no parent of the keeper
    os.nice(_NICE)  # the cores are for preparing: the first batch, too, is made while this one imports
    from stoker.keeper.serving import serve

    serve(entry, descriptor, listening)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
