"""The process that serves a folder: `python -m stoker.mount WHAT OWNER READY`. `start` starts it.

WHAT is JSON. OWNER is a descriptor of the process that the folder is for: when that ends, in any way, so does this one.
To READY is written one word, and what belongs to it: `files` and their number once the folder is there, `fuse` and why
nothing can be mounted here, `trouble` and what else went wrong.
"""

import ctypes
import json
import os
import select
import sys
import threading
from typing import Any

from stoker.errors import ConfigError

_DETACH = 2


def main(what: dict[str, Any], owner: int, ready: int) -> None:
    """Serve until the owner has ended."""

    told: list[str] = []

    def tell(word: str) -> None:
        if told:
            return  # the number of the descriptor may be another file's by now
        told.append(word)
        os.write(ready, word.encode())
        os.close(ready)

    threading.Thread(target=_end_with, args=(owner, what["folder"]), daemon=True).start()
    try:
        import mfusepy

        from stoker.cache.cached import Cache
        from stoker.mount.names import listed
        from stoker.mount.serving import Served

        found = listed(what["address"])
        name = getattr(found.source, "name", what["address"])
        cache = Cache(name, what["cache"], what["cache_dir"], disk=what["cache_disk"])
        served = Served(found, cache, ready=lambda: tell(f"files {len(served)}"))
        named = what["address"].replace(",", "\\,")
        mfusepy.FUSE(
            served,
            what["folder"],
            foreground=True,
            ro=True,
            fsname=named,
            subtype="stoker",
            kernel_cache=True,
            default_permissions=True,
            entry_timeout=3600,
            attr_timeout=3600,
            negative_timeout=60,
        )
    except (ConfigError, OSError) as error:
        kind, trouble = "trouble", str(error)
    except RuntimeError as error:  # of libfuse: /dev/fuse is there, and mounting is not permitted
        kind, trouble = "fuse", str(error)
    else:
        return
    tell(f"{kind} {trouble}")
    sys.exit(1)


def _end_with(owner: int, folder: str) -> None:
    gone = select.poll()
    gone.register(owner, select.POLLIN)
    gone.poll()
    ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
