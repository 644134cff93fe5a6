"""A child ends when its parent ends, even by a kill. The kernel reports that; nothing polls."""

import multiprocessing
import os
import select
import threading
from collections.abc import Callable


def end_with_parent(last: Callable[[], None] | None = None) -> bool:
    """End this process as soon as its parent has ended in any way; `last` is called before.

    False where the kernel cannot tell.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return False
    try:
        descriptor = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return False

    def watch() -> None:
        gone = select.poll()
        gone.register(descriptor, select.POLLIN)
        gone.poll()
        if last is not None:
            last()
        os._exit(1)

    threading.Thread(target=watch, name="stoker-parent-watch", daemon=True).start()
    return True
