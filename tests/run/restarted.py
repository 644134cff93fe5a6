"""Scripts under `run --checkpoint` that are killed and started again, quickly: by forks of a process that has torch.

What a start does is what `stoker run` does, but for the moment at which torch is imported.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.tries import HANG_S

_SERVE = """
import atexit, builtins, json, os, socket, sys
import torch, torch._dynamo, stoker.run.restart.watcher, stoker.run.replace
from pathlib import Path
from types import ModuleType
from stoker.run import ending
from stoker.run.replace import replace
from stoker.run.restart.start import begin

server = socket.socket(fileno=int(sys.argv[1]))
while True:
    text, descriptors, _, _ = socket.recv_fds(server, 1 << 20, 1)
    if not text:
        sys.exit()
    asked = json.loads(text)
    pid = os.fork()
    if pid == 0:
        break
    os.close(descriptors[0])
    server.send(json.dumps([pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]).encode())
server.close()
os.dup2(descriptors[0], 1), os.dup2(descriptors[0], 2), os.close(descriptors[0])
os.chdir(asked["folder"])
words = asked["words"]
if asked["settings"] is not None:
    ending.watch()
    words = begin(Path(asked["settings"]["checkpoint"]), words, asked["restart_args"])
    if words is None:
        os._exit(0)
sys.argv = words
sys.path.insert(0, asked["folder"])
module = sys.modules["__main__"] = ModuleType("__main__")
module.__file__ = words[0]
if asked["settings"] is not None:
    replace(asked["settings"])
torch.set_num_threads(1)
if asked["kill_at"] is not None:
    shown = builtins.print

    def show_and_wait(*words, **options):
        shown(*words, **options)
        if " ".join(map(str, words)).startswith(asked["kill_at"]):
            shown("#" * 65536, flush=True)  # more than anybody reads: it goes no further

    builtins.print = show_and_wait
code = 0
try:
    exec(compile(Path(words[0]).read_text(), words[0], "exec"), vars(module))
except SystemExit as left:
    code = left.code or 0
except BaseException as error:
    code, sys.last_value = 1, error
    sys.excepthook(type(error), error, error.__traceback__)
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(code)  # what python tears down otherwise takes longer than the script
"""


@dataclass
class Ended:
    """A start of a script that has ended, or was killed."""

    code: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def losses(self) -> list[str]:
        """The lines of the script itself."""
        return [line for line in self.lines if line.startswith(("epoch", "step"))]

    @property
    def ours(self) -> list[str]:
        """What was said about checkpoints."""
        return [line for line in self.lines if line.startswith("stoker:")]

    @property
    def since_restored(self) -> list[str]:
        """The script's own lines after everything was set as it was."""
        place = next(number for number, line in enumerate(self.lines) if "restored step" in line)
        return Ended(0, self.lines[place:]).losses


class Starter:
    """Starts scripts."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _SERVE, str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(
        self,
        folder: Path,
        words: list[str],
        settings: dict[str, Any] | None,
        *,
        kill_at: str | None = None,
        restart_args: str | None = None,
    ) -> Ended:
        """Run a script to its end, or kill it (-9) when a line begins so."""
        reading, writing = os.pipe()
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)  # it cannot run on while nobody reads
        asked = {
            "folder": str(folder),
            "words": words,
            "settings": settings,
            "restart_args": restart_args,
            "kill_at": kill_at,
        }
        socket.send_fds(self._socket, [json.dumps(asked).encode()], [writing])
        os.close(writing)
        ended = Ended()
        timer = threading.Timer(HANG_S, self._process.kill)
        timer.start()
        try:
            with open(reading, errors="replace") as lines:
                for line in lines:
                    ended.lines.append(line.rstrip("\n"))
                    if kill_at is not None and line.startswith(kill_at):
                        self._kill()
                        kill_at = None
            ended.code = json.loads(self._socket.recv(1 << 16))[1]
        finally:
            timer.cancel()
        assert kill_at is None, (kill_at, ended.lines[-20:])
        return ended

    def _kill(self) -> None:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(HANG_S)


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


class Script:
    """One script, with its folder and its checkpoints."""

    def __init__(self, starter: Starter, folder: Path, text: str, *arguments: Any) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        (folder / "script.py").write_text(text)
        self._starter = starter
        self._words = [str(folder / "script.py"), *map(str, arguments)]

    def plain(self) -> Ended:
        """What it does without us, in another folder."""
        folder = self.folder / "plain"
        folder.mkdir()
        ended = self._starter.start(folder, self._words, None)
        assert ended.code == 0, ended.lines
        return ended

    def start(self, kill_at: str | None = None, *, restart_args: str | None = None, more: tuple[str, ...] = ()) -> Ended:
        """One start with checkpoints at every third update, which may be killed."""
        words = [*self._words, *more]
        settings = {
            "checkpoint": str(self.checkpoints),
            "every": 3,
            "command": words,
            "is_told": restart_args is not None,
        }
        return self._starter.start(self.folder, words, settings, kill_at=kill_at, restart_args=restart_args)

    def check_restarts(self, *moments: str, restart_args: str | None = None) -> Ended:
        """Kill it at some moments; everything that it prints is what it prints without us, and nothing is left out."""
        whole = self.plain().losses
        reached = 0
        for number, moment in enumerate((*moments, None)):
            ended = self.start(moment, restart_args=restart_args)
            losses = ended.losses if number == 0 else ended.since_restored
            assert losses, ended.lines
            first = whole.index(losses[0]) if losses[0] in whole else -1
            assert losses == whole[first : first + len(losses)], (moment, _difference(losses, whole[max(0, first) :]))
            assert (first == 0) if number == 0 else 0 < first <= reached, (moment, first, reached, ended.ours)
            reached = first + len(losses)
        assert ended.code == 0
        assert reached == len(whole)
        return ended


def _difference(ours: list[str], theirs: list[str]) -> str:
    return next((f"{a!r} instead of {b!r}" for a, b in zip(ours, theirs, strict=False) if a != b), "the length")
