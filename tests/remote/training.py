"""A training script on a host inside this machine, and the processes of such hosts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.hosts import Host
from tests.scripts import offloaded

import stoker

SCRIPT = Path(offloaded.__file__)
LONG_S = 120.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "STOKER_SECRET_FILE"} | {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3",  # a process notices sooner that the head has gone
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "3",
}


class Training:
    """A script that trains on a host."""

    def __init__(self, host: Host, *words: str | Path, **environment: str) -> None:
        command = [sys.executable, *words]
        self._process = host.start(
            command, env=ENVIRONMENT | environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1
        )
        self.epochs: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._reading = threading.Thread(target=self._listen)
        self._reading.start()

    def _listen(self) -> None:
        self.said.extend(self._process.stderr or ())

    def epoch(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it has ended: {''.join(self.said)}"
        self.epochs.append(json.loads(line))
        return self.epochs[-1]

    def until(self, is_so: Callable[[], Any]) -> None:
        """Let it train until something is so, and for an epoch at least."""
        began = time.monotonic()
        self.epoch()
        while not is_so():
            assert time.monotonic() - began < LONG_S, f"it never was: {''.join(self.said)} {self.epochs[-1]}"
            self.epoch()

    def until_helped(self) -> None:
        """Let it train until workers on other hosts make batches."""
        before = self.epoch()["remote"]
        self.until(lambda: self.epochs[-1]["remote"] > before)

    def has_said(self, what: str) -> bool:
        return what in "".join(self.said)

    def end(self, *, awaited: bool = False) -> int:
        """End it, and compare all batches with those of a loader by itself. Returns the exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            if not awaited:  # it ends by itself
                self._process.stdin.write("end\n")
            self._process.stdin.close()
        with self._process.stdout:
            self.epochs += [json.loads(line) for line in self._process.stdout if line.startswith("{")]
        self._reading.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        alone = stoker.DataLoader(offloaded.Noisy(0.0), offloaded.BATCH, shuffle=True, seed=3)
        for epoch in self.epochs:
            assert {name: epoch[name] for name in ("digest", "is_whole")} == offloaded.epoch_of(alone)
            assert epoch["is_whole"]
        return self._process.wait(LONG_S)


def processes(host: Host, what: str) -> list[int]:
    """The processes of a host whose command line has a text in it."""
    found = []
    for pid in host.pids():
        with contextlib.suppress(OSError):
            if what in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                found.append(pid)
    return found


def workers(hosts: Iterable[Host]) -> list[int]:
    return [pid for host in hosts for pid in processes(host, "stoker.remote tcp://")]


def kill(pids: list[int], how: signal.Signals = signal.SIGKILL) -> None:
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def until(is_so: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < LONG_S
        time.sleep(0.05)
