"""What runs in an actor on another node: it keeps one remote worker running there, as a child of the actor.

A worker is a process of its own, so that Ray's threads are not in it when the user's code forks, and what a duty leaves
behind goes with it. This module is sent to the node by value: it imports nothing of ours, so that a node without Stoker
can say so.
"""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import Any

_AGAIN_S = 1.0


class Tending:
    """An actor. Ray makes it again, perhaps elsewhere, if its process or node is lost."""

    def __init__(self, address: str, secret: str) -> None:
        self._command = [sys.executable, "-P", "-m", "stoker.remote", address, "--told"]
        self._secret = secret
        self._host = socket.gethostname()
        self._words: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._tend, daemon=True).start()

    def word(self) -> dict[str, Any]:
        """What there is to tell next: {"there": ...} when a worker was started, {"trouble": ...} if none can be here."""
        return self._words.get()

    def _tend(self) -> None:
        # A worker ends with the thread that has started it: this one lives as long as the actor.
        while True:
            began = time.monotonic()
            worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            assert worker.stdin is not None and worker.stderr is not None
            with contextlib.suppress(BrokenPipeError), worker.stdin:
                worker.stdin.write(json.dumps({"secret": self._secret, "parent": os.getpid()}).encode() + b"\n")
            self._words.put({"there": worker.pid})
            last = ""
            with worker.stderr:
                for line in worker.stderr:
                    last = line.decode(errors="replace").strip() or last
                    print(last, file=sys.stderr, flush=True)  # into the actor's log
            if worker.wait() > 0:
                trouble = f"no worker can be on {self._host}: {last.removeprefix('stoker: ')}"
                self._words.put({"trouble": trouble, "host": self._host})
                return
            time.sleep(max(0.0, _AGAIN_S - (time.monotonic() - began)))
