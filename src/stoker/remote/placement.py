"""The relay's side of placing: it starts the process that has Ray in it, and starts it again when it has ended.

A run never depends on that process: without it workers that are there go on, and the training host makes the rest.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict

from stoker.remote.placing import PlacingOrder

_AGAIN_S, _MOST_AGAIN_S = 1.0, 60.0
_END_S = 3.0
_OF_A_RAY_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")
"""Set where the training process is a worker of Ray's. Ours is a program of its own."""


class WorkerPlacement:
    """Keeps workers placed until `close`."""

    def __init__(self, order: PlacingOrder) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._wanted: int | None = None
        self._over = threading.Event()
        self._answered = threading.Event()
        self._said: set[str] = set()
        self.there = 0
        """How many workers run on other nodes, as far as Ray knows."""
        self.trouble = ""
        """Why there are none, or fewer; "" after the cluster was reached."""
        self._thread = threading.Thread(target=self._keep, name="stoker-placement", daemon=True)
        self._thread.start()

    def want(self, workers: int | None) -> None:
        """Say how many workers are wanted; None: as many as CPUs are free."""
        with self._lock:
            is_new, self._wanted = workers != self._wanted, workers
            if is_new and self._process is not None:
                _tell(self._process, {"workers": workers})

    def first_answer(self) -> str:
        """Wait until the cluster was reached, or not. Returns why not, in words; "" if it was."""
        self._answered.wait()
        return self.trouble

    def close(self) -> None:
        """End all workers that were placed."""
        self._over.set()
        with self._lock:
            if self._process is not None:
                _hang_up(self._process)
        self._thread.join(_END_S)  # it may take Ray longer

    def _keep(self) -> None:
        pause_s = _AGAIN_S
        while not self._over.is_set():
            began = time.monotonic()
            self._run()
            self.there = 0
            self._answered.set()
            if time.monotonic() - began > _MOST_AGAIN_S:
                pause_s = _AGAIN_S
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, _MOST_AGAIN_S)

    def _run(self) -> None:
        """Run the process to its end."""
        with self._lock:
            if self._over.is_set():
                return
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stoker.remote.placing"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name not in _OF_A_RAY_WORKER},
                text=True,
            )
            _tell(process, asdict(self._order))
            _tell(process, {"workers": self._wanted})
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                word = json.loads(line)
                if "there" in word:
                    self.trouble, self.there = "", word["there"]
                else:
                    self.trouble = word["trouble"]
                    self._say(self.trouble)
                self._answered.set()
        with self._lock:
            self._process = None
            _hang_up(process)
        process.wait()
        if not self._over.is_set() and not self.trouble:
            self.trouble = f"the process that has the Ray cluster at {self._order.ray} has ended, and is started again"
            self._say(self.trouble)

    def _say(self, what: str) -> None:
        """Say something once."""
        if what not in self._said:
            self._said.add(what)
            print(f"stoker: offload=: {what}. The training host goes on.", file=sys.stderr, flush=True)


def _tell(process: "subprocess.Popen[str]", word: object) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended
        process.stdin.write(json.dumps(word) + "\n")
        process.stdin.flush()


def _hang_up(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
