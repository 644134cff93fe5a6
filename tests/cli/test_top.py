"""`stoker top` with real loaders: three, of which one is killed and one is stalled; and with a real terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cli.loading import SCRIPT, Together, Training
from tests.tries import HANG_S, fastest, in_some_try, seconds, until

import stoker
from stoker.cli import main
from stoker.group.door import home

ODD_NAME = "odd\n\x1b[31m\"'.py"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Training]]:
    """A steady one, one that waits for ever, and one to be killed."""
    folder = tmp_path_factory.mktemp("top")
    odd = folder / ODD_NAME
    odd.write_text(SCRIPT.read_text())
    place = folder / "own"
    training = {
        "steady": Training(place, 0, "steady", "1"),
        "stalled": Training(place, 1, "blocks", "2"),
        "doomed": Training(place, 2, "steady", "0", script=odd),
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STOKER_TOP", str(place))
            for one in training.values():
                one.wait_until_ready()
            yield training
    finally:
        for one in training.values():
            one.kill()


def document(capsys: pytest.CaptureFixture[str]) -> dict[int, dict[str, Any]]:
    assert main(["top", "--json"]) == 0
    return {row["pid"]: row for row in json.loads(capsys.readouterr().out)}


def test_all_are_shown_and_the_stall_is_named(three: dict[str, Training], capsys: pytest.CaptureFixture[str]) -> None:
    def is_named() -> bool:
        stalled = document(capsys)[three["stalled"].pid]
        return stalled["late_pid"] is not None and stalled["is_stalled"]

    until(is_named)  # a stall has a name after a few seconds
    in_some_try(lambda: check_rows(three, document(capsys)), 10)


def check_rows(three: dict[str, Training], rows: dict[int, dict[str, Any]]) -> None:
    stalled = rows[three["stalled"].pid]
    assert set(rows) == {training.pid for training in three.values()}
    assert stalled["late_pid"] in {child.pid for child in psutil.Process(three["stalled"].pid).children()}
    assert re.match(rf"waiting \d+ s for worker pid {stalled['late_pid']} \(asleep", stalled["hint"])
    assert (stalled["samples_per_s"], stalled["waiting_share"], stalled["samples"]) == (0, 1, 16)
    steady = rows[three["steady"].pid]
    assert 10 < steady["samples_per_s"] < 1000
    assert (steady["rank"], steady["workers"], steady["dataset"], steady["state"] != "stalled") == (0, 1, "Pictures", True)
    assert not steady["is_stalled"]
    assert steady["age_s"] < 2
    assert rows[three["doomed"].pid]["script"].endswith(ODD_NAME)


def test_a_table_in_a_pipe(three: dict[str, Training], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 0  # output is captured: not a terminal
    text = capsys.readouterr().out
    assert main(["top", "--once"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 4
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].split()[:2] == ["LOADER", "RANK"]
    assert sum(line.startswith(("loading.py", "odd")) for line in lines) == 3
    assert any(line.startswith("odd\\n\\x1b[31m\"'.py Pictures") for line in lines)


class Terminal:
    """`stoker top` on a terminal of its own."""

    def __init__(self, width: int = 120) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(width)
        self.before = termios.tcgetattr(self.slave)
        self.written = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stoker", "top"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, width: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 20, width, 0, 0))

    def read(self) -> None:
        if select.select([self.master], [], [], 0.05)[0]:
            self.written += os.read(self.master, 65536)

    def screen(self) -> list[str]:
        """The latest whole picture."""
        return (self.pictures() or [[""]])[-1]

    def pictures(self) -> list[list[str]]:
        """All whole pictures so far."""
        found = re.findall(rb"\x1b\[H(.*?)\x1b\[J", self.written, re.DOTALL)
        texts = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", picture.decode()) for picture in found]
        return [text.replace("\r", "").split("\n") for text in texts]

    def until(self, is_so: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not is_so(self.screen()):
            self.read()
            assert time.monotonic() < deadline, self.written[-2000:]

    def outdated(self, is_so: Callable[[list[str]], bool]) -> int:
        """How many pictures are drawn from now on, one a second, until it is so. One of them may be half drawn now."""
        while select.select([self.master], [], [], 0)[0]:
            self.read()
        begun = len(self.pictures())
        self.until(is_so)
        return [is_so(picture) for picture in (*self.pictures()[begun:], self.screen())].index(True)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def ends(self) -> int:
        deadline = time.monotonic() + HANG_S
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < deadline
        while select.select([self.master], [], [], 0)[0]:
            self.read()
        return self.process.returncode

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def shows(*words: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(any(word in line for line in lines) for word in words)


@pytest.mark.parametrize("how", ["q", "ctrl-c", "sigterm"])
def test_the_terminal_is_given_back(three: dict[str, Training], terminal: Terminal, how: str) -> None:
    terminal.until(shows("stoker top", "loading.py", "waiting"))
    assert terminal.written.startswith(b"\x1b[?1049h")
    assert not termios.tcgetattr(terminal.slave)[3] & termios.ICANON
    if how == "sigterm":
        terminal.process.terminate()
    else:
        terminal.press(b"q" if how == "q" else b"\x03")
    assert terminal.ends() == 0
    assert terminal.written.endswith(b"\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_it_is_drawn_again_resized_and_stopped_for_a_while(three: dict[str, Training], terminal: Terminal) -> None:
    terminal.until(shows("stoker top", "loading.py"))
    first = terminal.screen()[0]
    terminal.until(lambda lines: lines[0] != first)  # the clock goes on
    terminal.resize(60)
    terminal.until(lambda lines: max(map(len, lines)) <= 60)
    terminal.press(b"\x1a")
    until(lambda: terminal.read() or psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
    assert termios.tcgetattr(terminal.slave) == terminal.before
    terminal.resize(100)
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(lambda lines: 60 < max(map(len, lines)) <= 100)
    terminal.press(b"xq")
    assert terminal.ends() == 0


def test_a_picture_a_second(three: dict[str, Training], terminal: Terminal) -> None:
    terminal.until(shows("stoker top"))

    def pause() -> float:
        drawn = len(terminal.pictures())
        return seconds(lambda: until(lambda: terminal.read() or len(terminal.pictures()) > drawn))

    pause()
    assert fastest(lambda: abs(1.0 - pause()), 0.3, tries=20) < 0.3


def test_a_killed_one_is_gone_within_two_pictures(three: dict[str, Training], terminal: Terminal) -> None:
    terminal.until(shows("odd"))
    os.kill(three["doomed"].pid, signal.SIGKILL)  # not waited for: a zombie
    assert terminal.outdated(lambda lines: not shows("odd")(lines)) <= 2
    assert shows("2 loaders", "loading.py")(terminal.screen())


# ---- a group


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Together]:
    """Three in a group: one with two workers, one with one, and one with none."""
    place = tmp_path / "own"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("STOKER_TOP", str(place))
    made = Together(place, f"test-top-{os.getpid()}", fast=("2", "0.02"), other=("1", "0.02"), late=("0", "0.02"))
    try:
        made.begin()
        yield made
    finally:
        made.kill()


def test_a_group_of_three_one_stopped_one_killed(
    together: Together, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    name, late = together.group, together["late"].pid
    terminal.until(shows("3 loaders, 1 group", "MEMBERS", f"{name}  "))
    until(lambda: document(capsys)[late]["group"]["workers"] == 3)  # jobs may be ready before their workers are
    rows = document(capsys)
    group = rows[late]["group"]
    assert {row["group"]["stream"] for row in rows.values()} == {group["stream"]}
    assert (group["name"], len(group["members"]), group["workers"]) == (name, 3, 3)
    assert {member["pid"] for member in group["members"]} == set(rows)
    assert 0 < group["staging_bytes"] <= group["budget_bytes"]
    assert group["prepared"] > 0
    assert (group["repeated"], group["taken_over"], rows[late]["workers"]) == (0, 0, 0)

    os.kill(late, signal.SIGSTOP)
    named = rf"late.py \(pid {late}\), which is [1-9]\d* batches behind in"
    hinted = lambda lines: len(re.findall(named, " ".join(lines))) == 2  # noqa: E731
    assert terminal.outdated(lambda lines: " ".join(lines).count(f"late.py (pid {late})") >= 2) <= 3
    terminal.until(hinted)
    assert shows(f"last is late.py (pid {late}), ", "stopped by a signal", f"`kill -CONT {late}`")(terminal.screen())
    rows = document(capsys)
    fast = rows[together["fast"].pid]
    assert fast["group"]["waits_for"] == {"kind": "room", "member": rows[late]["group"]["member"], "pid": late}
    assert fast["group"]["last"]["pid"] == late
    assert fast["group"]["last"]["behind"] == rows[late]["group"]["behind"] > 0
    assert "stopped by a signal or a debugger" in rows[late]["hint"]

    os.kill(together["other"].pid, signal.SIGKILL)  # not waited for: a zombie
    assert terminal.outdated(shows("2 loaders")) <= 2
    assert not shows("other.py")(terminal.screen())
    members = document(capsys)[late]["group"]["members"]
    assert {member["pid"] for member in members} == {late, together["fast"].pid}

    os.kill(late, signal.SIGCONT)
    terminal.until(lambda lines: not shows("stopped")(lines))


def test_a_slow_one_is_named(together: Together, terminal: Terminal) -> None:
    slow = together["other"].pid
    terminal.until(shows("3 loaders, 1 group"))
    os.kill(slow, signal.SIGUSR1)
    terminal.until(shows(f"for other.py (pid {slow}), which is"))
    terminal.resize(80)
    terminal.until(lambda lines: max(map(len, lines)) <= 80)
    assert shows("LOADER", "GROUP", "MEMBERS")(terminal.screen())


def test_a_lock_that_is_held_keeps_nobody_from_looking(together: Together, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (home() / together.group).glob("*/table")
    with path.open("rb+") as table:
        fcntl.flock(table, fcntl.LOCK_EX)
        until(lambda: document(capsys)[together["fast"].pid]["is_stalled"])  # who waited for the lock would wait for ever
        row = document(capsys)[together["fast"].pid]
        assert len(row["group"]["members"]) == 3
        assert row["group"]["locked_by"] == os.getpid()
        assert row["hint"].startswith("waiting ")
        fcntl.flock(table, fcntl.LOCK_UN)


def test_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STOKER_TOP", str(tmp_path / "none"))
    assert main(["top"]) == 0
    assert capsys.readouterr().out.startswith("no loaders")
    assert main(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    (tmp_path / "none" / "loaders").mkdir(parents=True)
    (tmp_path / "none").chmod(0o755)
    assert main(["top", "--once"]) == 1
    said = f"{tmp_path / 'none'} is not a folder of this user alone: chmod 700 {tmp_path / 'none'}\n"
    assert capsys.readouterr().err.endswith(said)
    (tmp_path / "file").touch()
    monkeypatch.setenv("STOKER_TOP", str(tmp_path / "file"))
    assert main(["top", "--once"]) == 1
    assert f"{tmp_path / 'file'} is not a folder of this user alone" in capsys.readouterr().err


def test_a_loader_says_why_it_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("STOKER_TOP", str(tmp_path))
    with pytest.warns(UserWarning, match=f"`stoker top` will not see this loader: .*chmod 700 {tmp_path}"):
        next(iter(stoker.DataLoader(list(range(4)))))
