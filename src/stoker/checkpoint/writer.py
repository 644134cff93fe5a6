"""The training process's end of the process that writes checkpoints."""

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from stoker.checkpoint.files import lay_out
from stoker.errors import CheckpointError
from stoker.host.headroom import headroom_bytes
from stoker.memory import Mapping, Memory

_LENGTH = 1 << 42
_RESERVE_BYTES = 64 << 20
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from stoker.checkpoint.persist import main; "
_START += "main(sys.argv[1], *map(int, sys.argv[2:]))"


class Writer:
    """Memory that a snapshot goes to, and a process that writes it to disk. One checkpoint is in flight at most.

    IDLE  -- save -->  SAVING  -- saved | failed | the process died -->  IDLE
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep
        self.memory = Memory(_LENGTH)
        self._mapping: Mapping | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._text = b""
        self.waits_for: dict[str, int] | None = None
        """Who else holds the directory."""

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._forget()
        ours, theirs = socket.socketpair()
        home = str(Path(__file__).parents[2])
        numbers = [self.memory.descriptor, theirs.fileno(), self.keep, os.getpid()]
        words = [sys.executable, "-S", "-E", "-c", _START, home, str(self.directory), *map(str, numbers)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    words,
                    pass_fds=[self.memory.descriptor, theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self._channel = ours

    def wait_ready(self, says: Any) -> None:
        """Wait until the process holds the directory's lock. If another process has it, `says` is called with its name."""
        self.start()
        while True:
            report = self.report(wait=True)
            if report is None:
                raise CheckpointError(f"the process that writes to {self.directory} could not start")
            if "ready" in report:
                self.waits_for = None
                return
            if "why" in report:
                raise CheckpointError(f"{self.directory} cannot be used: {report['why']}")
            holder = json.loads(report["waiting"] or "{}")
            if holder and holder != self.waits_for:
                self.waits_for = holder
                says(holder)

    def room(self, lengths: list[int]) -> Mapping:
        """Memory for pieces of these lengths, laid out as they will be in the file."""
        _, length = lay_out(lengths)
        if self._mapping is None or self._mapping.length < length:
            more = length - (self._mapping.length if self._mapping else 0)
            if more + _RESERVE_BYTES > headroom_bytes():
                raise CheckpointError(
                    f"a snapshot needs {length >> 20:,} MiB of host memory and "
                    f"{max(0, headroom_bytes()) >> 20:,} MiB are available"
                )
            self._mapping = None
            length = max(4096, 1 << (length - 1).bit_length() if length < 1 << 20 else length)
            self.memory.reserve(0, length)
            self._mapping = self.memory.map(0, length)
        return self._mapping

    def save(
        self, step: int, document: Any, lengths: list[int], *, kept: bool, prune: int | None, spared: list[str]
    ) -> None:
        """Have the snapshot in memory written."""
        assert self._channel is not None
        asked = {"save": step, "bytes": lay_out(lengths)[1], "lengths": lengths, "document": document}
        self._channel.sendall(json.dumps({**asked, "kept": kept, "prune": prune, "spared": spared}).encode() + b"\n")

    def report(self, *, wait: bool) -> dict[str, Any] | None:
        """The next message of the process. None if there is none yet or, if we wait, when the process is gone."""
        while b"\n" not in self._text:
            if self._channel is None:
                return None
            if not wait and not select.select([self._channel], [], [], 0)[0]:
                return None
            try:
                part = self._channel.recv(1 << 16)
            except ConnectionError:
                part = b""
            if not part:
                self._forget()
                return None
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        read: dict[str, Any] = json.loads(line)
        return read

    @property
    def is_alive(self) -> bool:
        """Whether there is a process to talk to."""
        return self._channel is not None and self._process is not None and self._process.poll() is None

    def _forget(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.wait()
            self._process = None
        self._text = b""

    def close(self) -> None:
        """Let the process finish what it has begun, and end it."""
        if self._channel is not None:
            self._channel.shutdown(socket.SHUT_WR)
        self._forget()
        self._mapping = None
        self.memory.close()
